"""API keys of the gateway: how one looks, what is kept of it, and how a presented one is checked.

A key is ``kf-<id>-<secret>``. The secret has 256 random bits, so that its plain SHA-256 is all that needs
to be kept: nobody can search so many, and no slow hash stands in the path of a request.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import re
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Self

from kernelflume.core.errors import ConfigurationError
from kernelflume.core.figures import is_number, is_whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

DOCUMENT_VERSION = 1
"""Of a file of keys. History: 1 = the fields below."""

_KEY = re.compile(r"kf-([0-9a-f]{12})-([A-Za-z0-9_-]{43})")
_ID = re.compile(r"[0-9a-f]{12}")
_HASH = re.compile(r"[0-9a-f]{64}")
MAX_NAME_CHARS = 100
MAX_KEY_CHARS = 200
"""No longer text is looked at as a key."""
_NOBODY_S_HASH = "0" * 64


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLimits:
    """What one key may use; None is no limit of its own."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Prompt and generated tokens together."""
    concurrent_requests: int | None = None

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if value is not None and not (is_whole(value) and value > 0):
                raise ConfigurationError(f"{limit.name} must be a whole number above 0, not {value!r}")

    @property
    def any(self) -> bool:
        """True when there is a limit a minute, which headers tell of."""
        return self.requests_per_minute is not None or self.tokens_per_minute is not None

    def over(self, defaults: KeyLimits) -> KeyLimits:
        """Return these limits, with the defaults where there is none."""
        own = {name: value for name, value in asdict(self).items() if value is not None}
        return KeyLimits(**(asdict(defaults) | own))


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """What is kept of one key."""

    key_id: str
    name: str
    """For people: whose key it is. Shown in logs and metrics."""
    secret_sha256: str
    created_at: int
    """Unix time in seconds."""
    weight: float = 1.0
    """Share of the service while requests wait, beside the other keys' weights."""
    limits: KeyLimits = field(default_factory=KeyLimits)

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.key_id) or not _HASH.fullmatch(self.secret_sha256):
            raise ConfigurationError("a key has an id of 12 and a hash of 64 hexadecimal digits")
        if not 0 < len(self.name) <= MAX_NAME_CHARS or not self.name.isprintable():
            raise ConfigurationError(f"a key's name has 1 to {MAX_NAME_CHARS} printable characters")
        if not is_number(self.weight) or not 0 < self.weight < math.inf:
            raise ConfigurationError(f"a key's weight must be a number above 0, not {self.weight!r}")
        if not is_whole(self.created_at) or self.created_at < 0:
            raise ConfigurationError(f"a key's created_at must be a Unix time, not {self.created_at!r}")

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """Return the key that ``to_dict`` wrote.

        Raises:
            ConfigurationError: it is none.
        """
        try:
            limits = KeyLimits(**data.get("limits", {}))
            return cls(**{**data, "limits": limits})
        except (TypeError, AttributeError) as error:
            raise ConfigurationError(f"not a key: {error}") from error

    def to_dict(self) -> dict[str, Any]:
        """Return the key as JSON has it."""
        limits = {name: value for name, value in asdict(self.limits).items() if value is not None}
        return asdict(self) | {"limits": limits}


def new_key(
    name: str,
    *,
    key_id: str,
    secret: str,
    created_at: int,
    weight: float = 1.0,
    limits: KeyLimits | None = None,
) -> tuple[str, ApiKey]:
    """Return a key's text, which is kept nowhere, and what is kept of it.

    Args:
        name: whose key it is.
        key_id: 12 random hexadecimal digits.
        secret: 256 random bits as 43 characters of URL-safe Base64.
        created_at: Unix time in seconds.
        weight: share while requests wait.
        limits: of its own.

    Raises:
        ConfigurationError: a value is out of range.
    """
    text = f"kf-{key_id}-{secret}"
    if not _KEY.fullmatch(text):
        raise ConfigurationError("a key needs an id of 12 hexadecimal digits and a secret of 43 characters")
    key = ApiKey(
        key_id=key_id,
        name=name,
        secret_sha256=_hash(secret),
        created_at=created_at,
        weight=weight,
        limits=limits or KeyLimits(),
    )
    return text, key


class KeyRing:
    """The keys in force at one moment."""

    def __init__(self, keys: Iterable[ApiKey] = ()) -> None:
        self._keys = {key.key_id: key for key in keys}

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, presented: str) -> ApiKey | None:
        """Return the key that a text is, or None. How long it takes tells nothing of a secret."""
        match = _KEY.fullmatch(presented) if len(presented) <= MAX_KEY_CHARS else None
        key = self._keys.get(match[1]) if match else None
        expected = key.secret_sha256 if key else _NOBODY_S_HASH
        is_equal = hmac.compare_digest(_hash(match[2] if match else ""), expected)
        return key if is_equal else None


def dump_keys(keys: Iterable[ApiKey]) -> str:
    """Return a file of keys."""
    listed = [key.to_dict() for key in keys]
    return json.dumps({"version": DOCUMENT_VERSION, "keys": listed}, indent=2, ensure_ascii=False) + "\n"


def load_keys(text: str) -> list[ApiKey]:
    """Read a file of keys; an empty one has none.

    Raises:
        ConfigurationError: it is no such file. The message shows no hash.
    """
    if not text.strip():
        return []
    try:
        document: Any = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"it is no JSON: {error}") from error
    if not isinstance(document, dict) or document.get("version") != DOCUMENT_VERSION:
        raise ConfigurationError(f"it is no file of keys of version {DOCUMENT_VERSION}")
    listed = document.get("keys")
    if not isinstance(listed, list):
        raise ConfigurationError("it has no list of keys")
    keys = [ApiKey.from_dict(item) for item in listed]
    if len({key.key_id for key in keys}) < len(keys):
        raise ConfigurationError("two keys have the same id")
    return keys


def load_stored(texts: Mapping[str, str]) -> list[ApiKey]:
    """Read the keys of a store, by id.

    Raises:
        ConfigurationError: one is damaged.
    """
    keys = []
    for key_id, text in sorted(texts.items()):
        try:
            keys.append(ApiKey.from_dict(json.loads(text)))
        except (ValueError, ConfigurationError) as error:
            raise ConfigurationError(f"key {key_id} in the store is damaged: {error}") from error
    return keys


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
