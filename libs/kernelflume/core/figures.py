"""Telling numbers from true and false, which Python counts among them, also as it reads JSON and YAML."""

from __future__ import annotations

from typing import TypeGuard


def is_number(value: object) -> TypeGuard[float]:
    """Tell whether a value is a number; NaN and infinity are."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_whole(value: object) -> TypeGuard[int]:
    """Tell whether a value is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)
