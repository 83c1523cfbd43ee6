"""What the device path needs on either side, besides a GPU."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from kernelflume.core.geometry import FP8

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kernelflume.core.geometry import KvGeometry

FORMATS = ("bfloat16", "float16")
"""What FlashInfer attends in, and so what attention nodes compute in; keys and values may be in FP8."""

_FP8_HEAD_DIMS = (64, 128, 256)
"""With others its kernels read past the head, or compute something else, without an error."""

EXCHANGE_PACKAGES = {"cuda.bindings": "cuda-bindings", "libucx": "libucx-cu13"}
"""Modules that building and launching the exchange kernels needs, with the packages that bring them."""


def flashinfer_limit(geometry: KvGeometry) -> str:
    """Say what FlashInfer does instead of attending in these formats; empty where it does."""
    dtype, kv_dtype, head_dim = geometry.dtype, geometry.kv_dtype, geometry.head_dim
    if dtype not in FORMATS:
        return f"computes in {' or '.join(FORMATS)}, not in {dtype}"
    if kv_dtype not in (dtype, FP8):
        return f"attends in {dtype} to keys and values in {dtype} or {FP8}, not in {kv_dtype}"
    if kv_dtype == FP8 and head_dim not in _FP8_HEAD_DIMS:
        return f"attends to {FP8} with head_dim {', '.join(map(str, _FP8_HEAD_DIMS))}, not {head_dim}"
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
