from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import pytest

from kernelflume.core.apikeys import ApiKey, KeyLimits, KeyRing, dump_keys, load_keys, load_stored, new_key
from kernelflume.core.errors import ConfigurationError

SECRET = "s" * 43


def key_of(
    name: str = "alice", key_id: str = "0123456789ab", secret: str = SECRET, **more: Any
) -> tuple[str, ApiKey]:
    return new_key(name, key_id=key_id, secret=secret, created_at=1, **more)


def test_a_key_is_found_by_its_text_alone() -> None:
    text, key = key_of()
    other = key_of("bob", "ba9876543210", "t" * 43)[1]
    ring = KeyRing([key, other])
    assert len(ring) == 2
    assert ring.find(text) is key
    for wrong in (
        "",
        "kf-",
        text[:-1],
        text + "x",
        text.upper(),
        f"kf-ba9876543210-{SECRET}",
        f" {text}",
        "é" * 60,
    ):
        assert ring.find(wrong) is None
    assert KeyRing().find(text) is None


def test_what_is_kept_is_a_hash() -> None:
    text, key = key_of(limits=KeyLimits(requests_per_minute=3), weight=2.5)
    document = dump_keys([key])
    assert SECRET not in document
    assert text not in document
    assert hashlib.sha256(SECRET.encode()).hexdigest() in document
    assert load_keys(document) == [key]
    assert load_keys("") == []


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        '{"version": 2, "keys": []}',
        '{"version": 1}',
        '{"version": 1, "keys": [1]}',
        '{"version": 1, "keys": [{"name": "a"}]}',
        '{"version": 1, "keys": [{"key_id": "x"}]}',
    ],
)
def test_what_is_no_file_of_keys_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        load_keys(text)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("key_id", "short"),
        ("secret_sha256", "0" * 63),
        ("name", ""),
        ("name", "a\nb"),
        ("weight", 0),
        ("weight", float("nan")),
        ("weight", True),
        ("created_at", -1),
    ],
)
def test_a_damaged_key_is_refused(field: str, value: object) -> None:
    key = key_of()[1]
    data = dataclasses.asdict(key) | {"limits": {}, field: value}
    with pytest.raises(ConfigurationError):
        ApiKey.from_dict(data)


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "1"])
def test_a_limit_is_a_whole_number(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="tokens_per_minute"):
        KeyLimits(tokens_per_minute=value)


def test_two_keys_of_one_id_are_refused_and_stored_ones_are_named() -> None:
    key = key_of()[1]
    with pytest.raises(ConfigurationError, match="same id"):
        load_keys(dump_keys([key, key]))
    with pytest.raises(ConfigurationError, match="abc"):
        load_stored({"abc": "{"})


def test_own_limits_come_before_defaults() -> None:
    own = KeyLimits(requests_per_minute=3)
    assert own.over(KeyLimits(requests_per_minute=9, tokens_per_minute=7)) == KeyLimits(
        requests_per_minute=3, tokens_per_minute=7
    )
