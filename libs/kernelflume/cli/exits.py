"""Errors of the command line as one clear line and an exit code."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console

from kernelflume.cli.supervisor import StackInterruptedError
from kernelflume.core.errors import ConfigurationError, KernelFlumeError
from kernelflume.runtime.service import EXIT_FAILED, EXIT_REFUSED

if TYPE_CHECKING:
    from collections.abc import Iterator

EXIT_INTERRUPTED = 130


@contextmanager
def errors_as_exit() -> Iterator[None]:
    """Turn the product's errors into a line on standard error and an exit.

    Code 2: something asked for cannot be had. Code 130: interrupted. Code 1: any other failure.
    """
    try:
        yield
    except KernelFlumeError as error:
        Console(stderr=True).print(f"kernelflume: {error}", markup=False, highlight=False, soft_wrap=True)
        raise SystemExit(_code_of(error)) from None


def _code_of(error: KernelFlumeError) -> int:
    if isinstance(error, StackInterruptedError):
        return EXIT_INTERRUPTED
    return EXIT_REFUSED if isinstance(error, ConfigurationError) else EXIT_FAILED
