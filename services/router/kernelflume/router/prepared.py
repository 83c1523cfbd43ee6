"""Work that nobody waits for yet, done while the weight nodes are."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def soon(work: Callable[[], None]) -> None:
    """Do something two turns of the event loop from now: what is sent in this one leaves in the next."""
    loop = asyncio.get_running_loop()
    loop.call_soon(loop.call_soon, work)


class Prepared(Generic[T]):
    """A value that is made in a later turn of the event loop, or when it is asked for if that is sooner."""

    def __init__(self, make: Callable[[], T]) -> None:
        """Make a value soon.

        Args:
            make: called once. What it raises is raised to whoever asks for the value.
        """
        self._make: Callable[[], T] | None = make
        self._value: T
        self._error: Exception | None = None
        soon(self._prepare)

    def get(self) -> T:
        """Return the value."""
        self._prepare()
        if self._error is not None:
            raise self._error
        return self._value

    def _prepare(self) -> None:
        make, self._make = self._make, None
        if make is None:
            return
        try:
            self._value = make()
        except Exception as error:  # noqa: BLE001 - told to whoever asks
            self._error = error
