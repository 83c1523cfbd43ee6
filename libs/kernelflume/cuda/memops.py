"""Writes of and waits for single words in stream order, by the GPU's front end; they can be captured."""

from __future__ import annotations

from typing import Any

from kernelflume.core.errors import ConfigurationError, UnavailableError

_SET = 1
_WAIT_UNTIL_AT_LEAST = 0
"""CU_STREAM_WAIT_VALUE_GEQ"""


class StreamMemops:
    """Sets and awaits the flags of ``cuda.flags`` on a stream.

    A wait has no time-out: whoever captures one must have a thread that sets the flag in the end, whatever
    happens.
    """

    def __init__(self) -> None:
        """Look for the driver's bindings.

        Raises:
            ConfigurationError: cuda-bindings is missing.
        """
        try:
            from cuda.bindings import driver  # noqa: PLC0415 - optional dependency, named in the error
        except ImportError as error:
            raise ConfigurationError(
                "host path: cuda-bindings is missing; install kernelflume[gpu], or set data_path=posted"
            ) from error
        self._driver: Any = driver

    def set(self, address: int, stream: int) -> None:
        """Set the flag once everything before it in the stream is done and visible to the host."""
        self._check("cuStreamWriteValue32", self._driver.cuStreamWriteValue32(stream, address, _SET, 0))

    def wait(self, address: int, stream: int) -> None:
        """Hold the stream until the flag is set."""
        result = self._driver.cuStreamWaitValue32(stream, address, _SET, _WAIT_UNTIL_AT_LEAST)
        self._check("cuStreamWaitValue32", result)

    @staticmethod
    def _check(name: str, result: tuple[Any, ...]) -> None:
        if int(result[0]) != 0:
            raise UnavailableError(f"CUDA: {name} failed with {result[0]!s}")
