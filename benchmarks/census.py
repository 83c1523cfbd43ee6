"""What could leak of a served model: processes, descriptors, memory, shared memory, keys of the store."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from redis import Redis

from kernelflume.scaler.operation_records import MAX_RECORDS

if TYPE_CHECKING:
    from collections.abc import Mapping

_SHARED_MEMORY = Path("/dev/shm")
_SHARED_MARKS = ("/dev/shm/", "/SYSV", "/memfd:")
_SETTLE_INTERVAL_S = 0.5
POOLED = 4
"""Descriptors, threads and mappings that a process may have more: pools grow to the most used at once."""


@dataclass(frozen=True, slots=True)
class ProcessCensus:
    """One process."""

    role: str
    num_descriptors: int
    num_threads: int
    num_shared: int
    """Mappings of shared memory."""
    rss_bytes: int


@dataclass(frozen=True, slots=True)
class Census:
    """All of a stack at one moment."""

    processes: Mapping[int, ProcessCensus]
    keys: Mapping[str, int]
    """Size of each key of the store: its fields, members or characters."""
    shared_memory: frozenset[str]
    """Names in the machine's shared memory."""

    def differences(self, later: Census, *, memory_bytes: int) -> list[str]:
        """Return what is there later that was not before; memory counts if a process grew by more.

        Nodes come and go, so processes are compared by their roles, and the inside of those that stayed. To
        tell a leak from a pool there must have been more than ``POOLED`` times what could leak.
        """
        found = _differing("processes", _roles(self), _roles(later))
        for pid, before in self.processes.items():
            after = later.processes.get(pid)
            if after is None:
                continue
            name = f"{before.role} ({pid})"
            for what in ("num_descriptors", "num_threads", "num_shared"):
                if getattr(after, what) > getattr(before, what) + POOLED:
                    found.append(f"{name}: {what} {getattr(before, what)} -> {getattr(after, what)}")
            if after.rss_bytes - before.rss_bytes > memory_bytes:
                found.append(f"{name}: {before.rss_bytes >> 20} -> {after.rss_bytes >> 20} MiB")
        found += _differing("store", self.keys, later.keys)
        found += [f"shared memory: {name}" for name in sorted(later.shared_memory - self.shared_memory)]
        return found


def take(root: psutil.Process, redis_url: str) -> Census:
    """Look at a process, all that descend from it, and its store."""
    processes = {}
    for process in (root, *root.children(recursive=True)):
        try:
            processes[process.pid] = ProcessCensus(
                role=_role(process),
                num_descriptors=process.num_fds(),
                num_threads=process.num_threads(),
                num_shared=_num_shared(process.pid),
                rss_bytes=process.memory_info().rss,
            )
        except (psutil.Error, OSError):  # it has just ended
            continue
    with Redis.from_url(redis_url, decode_responses=True) as redis:
        names = list(redis.scan_iter())
        # Records of operations end by themselves, and there are never more than so many.
        records = {key for key in names if ":operation:" in key and redis.pttl(key) > 0}
        keys = {key: _size(redis, key) for key in names if key not in records}
        keys["operation records beyond their bound"] = max(0, len(records) - MAX_RECORDS)
    return Census(processes, keys, frozenset(path.name for path in _SHARED_MEMORY.iterdir()))


def settled(
    before: Census, root: psutil.Process, redis_url: str, *, memory_bytes: int, patience_s: float
) -> tuple[Census, list[str]]:
    """Look again and again until nothing differs, or patience is over; return the last look and what differs.

    Much ends a moment after an operation does: connections, leases, sequences.
    """
    deadline = time.monotonic() + patience_s
    while True:
        now = take(root, redis_url)
        found = before.differences(now, memory_bytes=memory_bytes)
        if not found or time.monotonic() > deadline:
            return now, found
        time.sleep(_SETTLE_INTERVAL_S)


def _role(process: psutil.Process) -> str:
    words = process.cmdline()
    text = " ".join(words)
    if "multiprocessing." in text:
        return "engine" if "spawn_main" in text else "resource tracker"
    module = next((word for word in text.split() if word.startswith("kernelflume.")), "")
    return module.removeprefix("kernelflume.") or Path(words[0] if words else process.name()).name


def _roles(census: Census) -> Counter[str]:
    return Counter(process.role for process in census.processes.values())


def _num_shared(pid: int) -> int:
    maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
    return sum(any(mark in line for mark in _SHARED_MARKS) for line in maps.splitlines())


def _size(redis: Any, key: str) -> int:
    match redis.type(key):
        case "hash":
            return int(redis.hlen(key))
        case "zset":
            return int(redis.zcard(key))
        case "set":
            return int(redis.scard(key))
        case _:
            return int(redis.exists(key))


def _differing(what: str, before: Mapping[str, int], after: Mapping[str, int]) -> list[str]:
    return [
        f"{what}: {name} {before.get(name, 0)} -> {after.get(name, 0)}"
        for name in sorted({*before, *after})
        if before.get(name, 0) != after.get(name, 0)
    ]
