"""The programs of a local stack: how each is started, and how one knows that it is ready."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import StrEnum

LOCALHOST = "127.0.0.1"
CPU = "cpu"
"""The device of nodes that nobody gives another."""


class Probe(StrEnum):
    """How one knows that a part can do its work."""

    STORE = "store"
    """The routing-table store answers a read."""
    GRPC = "grpc"
    """The gRPC health check says SERVING."""
    TOPOLOGY = "topology"
    """The scaler reports as many active attention nodes as were asked for, or more."""
    CONNECTED = "connected"
    """The weight node has prepared as many attention nodes as were asked for."""
    MEMBER = "member"
    """Its lease is in the store, and GRPC and CONNECTED hold at the address that it tells; asked
    at a ``member_address``."""
    HTTP = "http"
    """GET /ready answers 200."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSpec:
    """One program of the stack."""

    name: str
    """Also the name of its log file."""
    title: str
    """What a person is told it is."""
    command: tuple[str, ...]
    probes: tuple[tuple[Probe, str], ...]
    """What must hold before it counts as ready, each with the address it is asked at."""
    stop_grace_s: float = 5.0
    """How long it may take to end in order before it is killed."""
    is_replaceable: bool = False
    """Others do its work when it ends by itself: it is started again, and the stack goes on meanwhile."""


def member_address(node_id: str, redis_url: str) -> str:
    """Return where ``Probe.MEMBER`` asks for a weight node."""
    return f"{node_id}@{redis_url}"


def service(name: str, *arguments: str) -> tuple[str, ...]:
    """Return the command that runs a service with this interpreter."""
    return (sys.executable, "-m", f"kernelflume.{name}", *arguments)
