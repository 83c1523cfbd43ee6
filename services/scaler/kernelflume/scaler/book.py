"""The operations a scaler remembers: one that may run, and a bounded number of ended ones."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kernelflume.core.errors import AlreadyExistsError, LifecycleError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection

    from kernelflume.scaler.operation import Operation, Origin


class OperationBook:
    """All known operations by id. The runner and the succession write to it, in one event loop."""

    def __init__(self, *, max_ended: int) -> None:
        self._operations: dict[str, Operation] = {}  # in order of begin
        self._max_ended = max_ended
        self._changed = asyncio.Event()

    @property
    def running(self) -> Operation | None:
        """The operation that is not done, if any."""
        newest = self.newest
        return newest if newest is not None and not newest.done else None

    @property
    def newest(self) -> Operation | None:
        """The operation that began last, if any."""
        return next(reversed(self._operations.values()), None)

    def get(self, operation_id: str) -> Operation:
        """Return an operation.

        Raises:
            NotFoundError: there is none of that id, or it ended too long ago.
        """
        operation = self.find(operation_id)
        if operation is None:
            raise NotFoundError(f"there is no operation {operation_id!r}")
        return operation

    def find(self, operation_id: str) -> Operation | None:
        """Return an operation, or None when it is not known."""
        return self._operations.get(operation_id)

    def known(self, operation_id: str, target: int) -> Operation | None:
        """Return the operation that a request repeats, or None when the request is new.

        Raises:
            AlreadyExistsError: the id belongs to an operation with another target.
        """
        known = self._operations.get(operation_id)
        if known is not None and known.target != target:
            raise AlreadyExistsError(
                f"operation {operation_id} exists and has target {known.target}, not {target}"
            )
        return known

    def known_on(self, operation_id: str, node_ids: Collection[str]) -> Operation | None:
        """Return the operation on these nodes that a request repeats; see ``known``."""
        known = self._operations.get(operation_id)
        if known is not None and set(known.node_ids) != set(node_ids):
            raise AlreadyExistsError(
                f"operation {operation_id} exists and is on {', '.join(known.node_ids) or 'other nodes'}"
            )
        return known

    def check_free(self, *, beside: Origin | None = None) -> None:
        """Refuse a new operation while one runs, unless that is of the origin ``beside``.

        Raises:
            LifecycleError: it says which one does.
        """
        running = self.running
        if running is not None and running.origin is not beside:
            raise LifecycleError(
                f"operation {running.operation_id} (target {running.target}) is still "
                f"{running.phase}: wait for it or cancel it"
            )

    def put(self, operation: Operation) -> None:
        """Add or replace an operation, tell the watchers, and forget the oldest beyond the bound."""
        self._operations[operation.operation_id] = operation
        ended = [known.operation_id for known in self._operations.values() if known.done]
        for operation_id in ended[: max(0, len(ended) - self._max_ended)]:
            del self._operations[operation_id]
        self._changed.set()
        self._changed = asyncio.Event()

    def recall(self, operation: Operation) -> None:
        """Add an operation of an earlier scaler, which is done, as older than all that are known."""
        ended = [known.operation_id for known in self._operations.values() if known.done]
        for operation_id in ended[: max(0, len(ended) + 1 - self._max_ended)]:
            del self._operations[operation_id]
        self._operations = {operation.operation_id: operation, **self._operations}

    async def watch(self, operation_id: str) -> AsyncIterator[Operation]:
        """Yield the operation now and at each change, until it is done.

        A slow reader sees the newest state, not every one between.

        Raises:
            NotFoundError: there is none of that id.
        """
        seen: Operation | None = None
        operation = self.get(operation_id)
        while True:
            changed = self._changed
            operation = self._operations.get(operation_id, operation)
            if operation != seen:
                seen = operation
                yield operation
                continue  # more may have happened while the reader had it
            if operation.done:
                return
            await changed.wait()
