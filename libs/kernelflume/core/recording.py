"""A recorded run of the product: what was asked of it, when, and which attention nodes there were meanwhile.

`kernelflume bench --record` writes one, `kernelflume sim validate` replays it. It is a folder of two files,
here as texts: ``recording.json`` with all but the requests, ``requests.jsonl`` with one request a line. All
times are seconds since the run began.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Self, TypeVar

from kernelflume.core.errors import ConfigurationError
from kernelflume.core.figures import is_number, is_whole
from kernelflume.core.profile import PerformanceProfile

SCHEMA_VERSION = 2
"""History: 1 = requests, operations, the pool at the start, the policy, the profile; 2 = whether there was a
prefix cache. Recordings of 1 are read: there was one."""
_PREFIX_CACHE_UNTOLD = 1
SUMMARY = "recording.json"
REQUESTS = "requests.jsonl"

_MOST_S = 1e7
_MOST_COUNT = 2**48
_Kind = TypeVar("_Kind")


def time_per_token_s(first_token_s: float, ended_s: float, output_tokens: int) -> float | None:
    """Return the mean time of a token after the first (TPOT); None with fewer than two."""
    if output_tokens < 2:
        return None
    return (ended_s - first_token_s) / (output_tokens - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRequest:
    """One request that was answered whole."""

    sent_s: float
    first_token_s: float
    ended_s: float
    """When its last token came."""
    prompt_tokens: int
    cached_tokens: int
    """Of the prompt, those that the server had from a cache."""
    output_tokens: int

    def __post_init__(self) -> None:
        if not 0 <= _seconds(self, "sent_s") <= _seconds(self, "first_token_s") <= _seconds(self, "ended_s"):
            raise ConfigurationError("sent_s, first_token_s and ended_s do not follow each other from 0")
        for name, least in (("prompt_tokens", 1), ("cached_tokens", 0), ("output_tokens", 1)):
            _count(self, name, least)
        if self.cached_tokens > self.prompt_tokens:
            raise ConfigurationError("more tokens are cached than the prompt has")

    @property
    def tpot_s(self) -> float | None:
        """Mean time of a token after the first; None with fewer than two."""
        return time_per_token_s(self.first_token_s, self.ended_s, self.output_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedOperation:
    """One scale operation, from its beginning to its end or to the end of the run."""

    started_s: float
    """Before 0 where it was under way when the run began."""
    initial: int
    target: int
    cause: str
    result: str
    """succeeded, failed, cancelled; '' where it was still under way when the run ended."""
    node_ids: tuple[str, ...]
    phases: tuple[tuple[str, float], ...]
    """(phase, seconds it lasted), in order."""

    def __post_init__(self) -> None:
        _seconds(self, "started_s")
        for name in ("initial", "target"):
            _count(self, name, 0)
        if any(not is_number(seconds) or not 0 <= seconds <= _MOST_S for _, seconds in self.phases):
            raise ConfigurationError("a phase lasted no time that can be")
        if self.result not in ("", "succeeded", "failed", "cancelled"):
            raise ConfigurationError(f"result {self.result!r} is not known")

    @property
    def ended_s(self) -> float:
        """When its last phase ended."""
        return self.started_s + sum(seconds for _, seconds in self.phases)

    def seconds_of(self, *phases: str) -> float:
        """Return how long these phases took together."""
        return sum(seconds for phase, seconds in self.phases if phase in phases)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One run."""

    created: str
    """ISO 8601, for people."""
    workload: str
    """For people."""
    duration_s: float
    """From the beginning to the end of the last request."""
    initial_nodes: tuple[str, ...]
    """Attention nodes in the table at the beginning."""
    node_capacity_tokens: int
    page_tokens: int
    token_bytes: int
    has_prefix_cache: bool
    """Whether prompts were looked up in one, though none was found there."""
    policy: str
    """YAML, as the scaler had it in force."""
    profile: PerformanceProfile
    operations: tuple[RecordedOperation, ...]
    requests: tuple[RecordedRequest, ...]
    """In the order in which they were sent."""

    def __post_init__(self) -> None:
        if _seconds(self, "duration_s") <= 0:
            raise ConfigurationError("duration_s is not above 0")
        for name in ("node_capacity_tokens", "page_tokens", "token_bytes"):
            _count(self, name, 1)
        if not isinstance(self.has_prefix_cache, bool):
            raise ConfigurationError(f"has_prefix_cache must be true or false, not {self.has_prefix_cache!r}")
        if not self.requests:
            raise ConfigurationError("it has no request")
        if not self.initial_nodes:
            raise ConfigurationError("it has no attention node at the beginning")
        if any(request.ended_s > self.duration_s + 1e-6 for request in self.requests):
            raise ConfigurationError("a request ended after the run")

    def to_files(self) -> dict[str, str]:
        """Return the folder's files by name; ``from_files`` reads them back."""
        summary = {
            "schema": SCHEMA_VERSION,
            "num_requests": len(self.requests),
            **{name: getattr(self, name) for name in _PLAIN},
            "profile": self.profile.to_dict(),
            "operations": [asdict(operation) for operation in self.operations],
        }
        lines = [json.dumps(asdict(request), allow_nan=False) for request in self.requests]
        return {
            SUMMARY: json.dumps(summary, indent=2, allow_nan=False) + "\n",
            REQUESTS: "".join(f"{line}\n" for line in lines),
        }

    @classmethod
    def from_files(cls, summary: str, requests: str) -> Self:
        """Read the two files.

        Raises:
            ConfigurationError: one is cut off, of another schema, or has a figure that cannot be.
        """
        told = _parsed(SUMMARY, summary)
        schema = told.get("schema")
        if schema == _PREFIX_CACHE_UNTOLD:
            told.setdefault("has_prefix_cache", True)
        elif schema != SCHEMA_VERSION:
            raise ConfigurationError(
                f"{SUMMARY}: schema {schema!r} is not {SCHEMA_VERSION}, nor one that is read"
            )
        lines = requests.splitlines()
        if len(lines) != told.get("num_requests"):
            raise ConfigurationError(
                f"{REQUESTS}: {len(lines)} requests, where {SUMMARY} has num_requests "
                f"{told.get('num_requests')!r}: a file is cut off"
            )
        read = tuple(
            _built(RecordedRequest, f"{REQUESTS}: line {number}", _parsed(f"{REQUESTS}: line {number}", line))
            for number, line in enumerate(lines, 1)
        )
        values = {name: told[name] for name in (*_PLAIN, "profile", "operations") if name in told}
        if unknown := sorted(told.keys() - values.keys() - {"schema", "num_requests"}):
            raise ConfigurationError(f"{SUMMARY}: {', '.join(unknown)}: not known")
        try:
            values["profile"] = PerformanceProfile.from_dict(values["profile"])
            values["initial_nodes"] = tuple(map(str, values["initial_nodes"]))
            values["operations"] = tuple(map(_operation, values["operations"]))
        except KeyError as error:
            raise ConfigurationError(f"{SUMMARY}: {error.args[0]} is missing") from error
        except (TypeError, ValueError, AttributeError) as error:
            raise ConfigurationError(f"{SUMMARY}: {error}") from error
        except ConfigurationError as error:
            raise ConfigurationError(f"{SUMMARY}: {error}") from error
        return _built(cls, SUMMARY, {**values, "requests": read})


_PLAIN = (
    "created", "workload", "duration_s", "initial_nodes", "node_capacity_tokens", "page_tokens",
    "token_bytes", "has_prefix_cache", "policy",
)  # fmt: skip


def _operation(told: dict[str, Any]) -> RecordedOperation:
    values = dict(told)
    values["node_ids"] = tuple(map(str, values["node_ids"]))
    values["phases"] = tuple((str(phase), seconds) for phase, seconds in values["phases"])
    return _built(RecordedOperation, "operations", values)


def _parsed(where: str, text: str) -> dict[str, Any]:
    try:
        told = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"{where}: no JSON, or cut off: {error}") from error
    if not isinstance(told, dict):
        raise ConfigurationError(f"{where}: not a JSON object")
    return told


def _built(kind: type[_Kind], where: str, values: dict[str, Any]) -> _Kind:
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]  # all of them are dataclasses
    if missing := sorted(known - values.keys()):
        raise ConfigurationError(f"{where}: {', '.join(missing)} missing")
    if unknown := sorted(values.keys() - known):
        raise ConfigurationError(f"{where}: {', '.join(unknown)}: not known")
    try:
        return kind(**values)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from error


def _seconds(of: object, name: str) -> float:
    value = getattr(of, name)
    if not is_number(value) or not -_MOST_S <= value <= _MOST_S:
        raise ConfigurationError(f"{name} is no time that can be: {value!r}")
    return float(value)


def _count(of: object, name: str, least: int) -> None:
    value = getattr(of, name)
    if not is_whole(value) or not least <= value <= _MOST_COUNT:
        raise ConfigurationError(f"{name} must be a whole number from {least}, not {value!r}")
