"""What the device path needs on either side, besides a GPU."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from kernelflume.core.geometry import FP8

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMATS = ("bfloat16", "float16")
"""What FlashInfer attends in, and so what attention nodes compute in; keys and values may be in FP8."""

EXCHANGE_PACKAGES = {"cuda.bindings": "cuda-bindings", "libucx": "libucx-cu13"}
"""Modules that building and launching the exchange kernels needs, with the packages that bring them."""


def unknown_format(dtype: str, kv_dtype: str) -> str:
    """Say why FlashInfer does not know these formats of queries and of keys with values; empty if none."""
    if dtype not in FORMATS:
        return f"computes in {' or '.join(FORMATS)}, not in {dtype}"
    if kv_dtype not in (dtype, FP8):
        return f"attends in {dtype} to keys and values in {dtype} or {FP8}, not in {kv_dtype}"
    return ""


def is_installed(module: str) -> bool:
    """Tell whether a module can be imported, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of a package above it
        return False


def missing_packages(packages: Mapping[str, str]) -> list[str]:
    """Return the packages whose modules are not installed."""
    return [package for module, package in packages.items() if not is_installed(module)]
