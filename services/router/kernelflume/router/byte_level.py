"""How byte-level vocabularies write bytes. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

NUM_BYTES = 256


def byte_alphabet() -> list[str]:
    """Return the character that byte-level vocabularies write for each byte (GPT-2's table)."""
    plain = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(NUM_BYTES, 2 * NUM_BYTES))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(NUM_BYTES)]


def token_bytes(token: str | None, byte_of: Mapping[str, int]) -> bytes:
    """Return the bytes that a token of such a vocabulary stands for; none for an id without a token."""
    if token is None:
        return b""
    try:
        return bytes([byte_of[char] for char in token])
    except KeyError:
        # An added token is plain text, not written in the byte alphabet.
        return token.encode()
