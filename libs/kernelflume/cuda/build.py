"""Compiles a CUDA source to a cubin at first use and keeps it, keyed by everything that went into it."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from kernelflume.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

_TIMEOUT_S = 300.0
_FLAGS = (
    "-std=c++17",
    "-cubin",
    "-O3",
    "-diag-suppress=177",  # overloads for element types that a build does not use
    # Compares the versions of headers and library on the device, at the price of two loads a put.
    "-DUCP_DEVICE_ENABLE_PARAMS_CHECK=1",
)


def build(source: Path, *, architecture: str, defines: Mapping[str, int], cache: Path | None = None) -> bytes:
    """Return the cubin of ``source``.

    Args:
        source: a file of this package.
        architecture: the GPU's, such as ``sm_90a``.
        defines: preprocessor definitions.
        cache: folder of earlier results; by default ``kernelflume/cuda`` in the user's cache folder.

    Raises:
        ConfigurationError: the compiler or UCX's headers are missing, or the compiler failed.
    """
    compiler, headers = _find_compiler(), _find_headers()
    flags = [
        *_FLAGS,
        f"-arch={architecture}",
        *(f"-D{key}={value}" for key, value in sorted(defines.items())),
    ]
    digest = hashlib.sha256()
    for part in (source.read_bytes(), " ".join(flags).encode(), _identity(compiler), str(headers).encode()):
        digest.update(hashlib.sha256(part).digest())
    folder = cache or _cache_folder()
    result = folder / f"{source.stem}-{digest.hexdigest()[:24]}.cubin"
    if result.exists():
        return result.read_bytes()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch, "made.cubin")
        command = [compiler, *flags, f"-I{headers}", str(source), "-o", str(made)]
        try:
            run = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)  # noqa: S603 - the compiler of this machine
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ConfigurationError(f"nvcc: {error}") from error
        if run.returncode:
            raise ConfigurationError(f"nvcc could not compile {source.name}: {run.stderr.strip()[-2000:]}")
        # Several processes may build at once: whoever is last replaces an equal file.
        made.replace(result)
    return result.read_bytes()


def _find_compiler() -> str:
    found = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if found is None:
        raise ConfigurationError(
            "device path: nvcc is not on the PATH; install the CUDA toolkit, or set data_path=posted"
        )
    return found


def _find_headers() -> Path:
    """Find UCX's device headers, which the package libucx-cu13 carries."""
    spec = importlib.util.find_spec("libucx")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        headers = Path(folder, "include")
        if (headers / "ucp/api/device/ucp_device_impl.h").exists():
            return headers
    raise ConfigurationError(
        "device path: UCX's device headers are missing; install kernelflume[gpu], or set data_path=posted"
    )


def _identity(compiler: str) -> bytes:
    return subprocess.run([compiler, "--version"], capture_output=True, timeout=30, check=False).stdout  # noqa: S603 - as above


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "kernelflume", "cuda")
