"""What became of operations, kept in the store so that it can be told once their scaler is gone.

The record of an operation is written before anything is done for it, and after that whenever it changes. A
scaler that takes over finds the newest one by its name; one that is not done there was given up half way.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from kernelflume.core.errors import ConflictError, UnavailableError
from kernelflume.scaler.operation import Operation

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernelflume.runtime.clock import Clock
    from kernelflume.scaler.table import Table
    from kernelflume.store.base import SettingStore

logger = logging.getLogger(__name__)

SCHEMA_VERSION = 1
"""History: 1 = the operation, who ran it, when it was written, and the number that a person held before."""
TTL_S = 24 * 3600.0
"""How long an operation can be asked for."""
MAX_RECORDS = 100
"""Of how many operations at most."""
_INDEX = "operations"
"""Setting with the ids of the operations that have records, the newest last."""
_AT_ONCE_S = 0.001
_RETRY_S = 0.5
_FLUSH_S = 1.0
"""Longest wait for the last write when the scaler ends."""
_MAX_PENDING = 16
"""Operations whose newest state waits to be written; more than two mean that the store is away."""

_OPERATION = TypeAdapter(Operation)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationRecord:
    """An operation as it was when it was written."""

    operation: Operation
    """Its times are those of the reader's clock."""
    scaler: str
    leader: int | None
    """Fencing token of the scaler that ran it."""
    held_before: str
    """Number of nodes that a person held before it began; empty for none."""


class OperationRecords:
    """Writes and reads the records. One event loop; the runner and the succession use it."""

    def __init__(
        self,
        store: SettingStore,
        table: Table,
        clock: Clock,
        *,
        scaler: str,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Make records without contact to the store.

        Args:
            store: keeps them.
            table: knows the fencing token that guards every write.
            clock: of the operations' times.
            scaler: node id of this scaler.
            wall: seconds since the epoch, which two machines share well enough for the length of a phase.
        """
        self._store = store
        self._table = table
        self._clock = clock
        self._scaler = scaler
        self._wall = wall
        self._held_before: dict[str, str] = {}
        self._index: list[str] | None = None
        """As it is in the store; None until it was read."""
        self._pending: dict[str, Operation] = {}
        self._writing: asyncio.Task[None] | None = None

    async def begin(self, operation: Operation, *, held_before: str) -> None:
        """Write the record of an operation for which nothing was done yet.

        Raises:
            UnavailableError: the store cannot be reached; it may be written or not.
            ConflictError: another scaler leads.
        """
        self._held_before = {operation.operation_id: held_before}
        index = await self._read_index() if self._index is None else self._index
        index = [known for known in index if known != operation.operation_id] + [operation.operation_id]
        await self.write(operation)
        await self._keep(_INDEX, json.dumps(index[-MAX_RECORDS:]))
        self._index = index[-MAX_RECORDS:]
        for operation_id in index[:-MAX_RECORDS]:
            await self._keep(_key(operation_id), "", ttl_s=_AT_ONCE_S)

    def follow(self, operation: Operation) -> None:
        """Write the operation as it is now, soon: only its newest state counts."""
        self._pending[operation.operation_id] = operation
        for operation_id in list(self._pending)[: max(0, len(self._pending) - _MAX_PENDING)]:
            del self._pending[operation_id]
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_pending(), name="write operation records")

    async def write(self, operation: Operation) -> None:
        """Write the operation as it is now.

        Raises:
            UnavailableError: the store cannot be reached.
            ConflictError: another scaler leads.
        """
        await self._keep(_key(operation.operation_id), self._dump(operation))

    async def read(self, operation_id: str) -> OperationRecord | None:
        """Return a record, or None when there is none (any more), or none that can be understood.

        Raises:
            UnavailableError: the store cannot be reached.
        """
        text = await self._store.read_setting(_key(operation_id))
        if text is None:
            return None
        try:
            return self._load(text)
        except (ValueError, KeyError, TypeError) as error:
            logger.warning("the record of operation %s cannot be used: %s", operation_id, error)
            return None

    async def newest(self) -> OperationRecord | None:
        """Return the record of the operation that began last; see ``read``."""
        index = await self._read_index()
        return await self.read(index[-1]) if index else None

    async def close(self) -> None:
        """Give what waits a moment to be written."""
        if self._writing is not None:
            await asyncio.wait({self._writing}, timeout=_FLUSH_S)
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)

    async def _write_pending(self) -> None:
        while self._pending:
            operation_id, operation = next(iter(self._pending.items()))
            try:
                await self.write(operation)
            except UnavailableError:
                await asyncio.sleep(_RETRY_S)
                continue
            except ConflictError as error:
                logger.warning("operations are not recorded any more: %s", error)
                self._pending.clear()
                return
            if self._pending.get(operation_id) is operation:
                del self._pending[operation_id]

    async def _read_index(self) -> list[str]:
        text = await self._store.read_setting(_INDEX)
        try:
            return [str(operation_id) for operation_id in json.loads(text or "[]")]
        except (ValueError, TypeError) as error:
            logger.warning("the list of operations in the store cannot be used: %s", error)
            return []

    async def _keep(self, name: str, text: str, *, ttl_s: float = TTL_S) -> None:
        await self._store.write_setting(name, text, fencing_token=self._table.fencing_token, ttl_s=ttl_s)

    def _dump(self, operation: Operation) -> str:
        fields: dict[str, Any] = {
            "schema": SCHEMA_VERSION,
            "scaler": self._scaler,
            "leader": self._table.fencing_token,
            "written_at": self._wall(),
            "held_before": self._held_before.get(operation.operation_id, ""),
            "operation": _OPERATION.dump_python(_shifted(operation, -self._clock.now()), mode="json"),
        }
        return json.dumps(fields, allow_nan=False)

    def _load(self, text: str) -> OperationRecord:
        fields = json.loads(text)
        if fields["schema"] != SCHEMA_VERSION:
            raise ValueError(f"schema {fields['schema']!r} is not {SCHEMA_VERSION}")
        age_s = max(0.0, self._wall() - float(fields["written_at"]))
        operation = _OPERATION.validate_python(fields["operation"])
        return OperationRecord(
            operation=_shifted(operation, self._clock.now() - age_s),
            scaler=str(fields["scaler"]),
            leader=fields["leader"],
            held_before=str(fields["held_before"]),
        )


def _key(operation_id: str) -> str:
    return f"operation:{operation_id}"


def _shifted(operation: Operation, by_s: float) -> Operation:
    """Return the operation with its times on another clock."""
    return replace(
        operation,
        history=tuple(
            replace(
                span,
                started_at_s=span.started_at_s + by_s,
                ended_at_s=None if span.ended_at_s is None else span.ended_at_s + by_s,
            )
            for span in operation.history
        ),
    )
