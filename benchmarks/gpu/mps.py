"""NVIDIA's multi-process service: without it, processes of one GPU take turns in time slices."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_CONTROL = "nvidia-cuda-mps-control"
_WAIT_S = 20.0


@contextlib.contextmanager
def mps() -> Iterator[dict[str, str]]:
    """Run a daemon of one's own; yield the variables that make processes its clients.

    It serves all GPUs, so that they keep their numbers. Where there is no such program, or it does not start,
    nothing is yielded, and a line on stderr says so.
    """
    control = shutil.which(_CONTROL)
    if control is None:
        print(f"without MPS: there is no {_CONTROL}", file=sys.stderr)
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="mps", ignore_cleanup_errors=True) as folder:
        variables = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
        for path in variables.values():
            Path(path).mkdir()
        environment = os.environ | variables
        try:
            _tell(control, "-d", environment=environment)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"without MPS: {error}", file=sys.stderr)
            yield {}
            return
        try:
            yield variables
        finally:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                _tell(control, environment=environment, words="quit\n")


def _tell(control: str, *flags: str, environment: dict[str, str], words: str | None = None) -> None:
    """Run the control program; what it prints is dropped, for the daemon would hold a pipe open."""
    subprocess.run(
        [control, *flags],
        input=words,
        text=True,
        env=environment,
        check=True,
        timeout=_WAIT_S,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
