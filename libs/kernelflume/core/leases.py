"""What a living node says of itself: the record under its lease, renewed until it ends or dies."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self

from kernelflume.core.names import node_name
from kernelflume.core.profile import StepTimes


class NodeKind(StrEnum):
    """Services that hold a lease."""

    WEIGHT = "wnode"
    ATTENTION = "anode"
    SCALER = "scaler"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLoad:
    """Figures a node reports with every renewal; a kind leaves what is not its own at the default."""

    adopted_epoch: int = 0
    """Weight node: epoch of the snapshot its steps use."""
    prepared_nodes: tuple[str, ...] = ()
    """Weight node: names (id#incarnation) of the attention nodes it is connected to and has warmed."""
    num_requests_running: int = 0
    num_requests_waiting: int = 0
    capacity_tokens: int = 0
    """Attention node: tokens its pool can hold."""
    used_tokens: int = 0
    """Attention node: tokens held. Weight node: tokens of its running sequences."""
    reserved_tokens: int = 0
    """Attention node: tokens that the pages in use have room for, filled or not."""
    num_sequences: int = 0
    """Attention node: sequences with at least one token here."""
    waiting_tokens: int = 0
    """Weight node: tokens accepted whose keys and values are not computed yet."""
    tails: tuple[tuple[str, int], ...] = ()
    """Weight node: (attention node id, sequences that append there)."""
    decode_step_s: float = 0.0
    """Weight node: median duration of its latest decode steps; 0 while it decodes nothing."""
    num_decode_rows: int = 0
    """Weight node: rows of those steps."""
    step_times: StepTimes | None = None
    """Weight node: where the time of those steps goes; None until enough of them had as many rows."""
    scan_bytes_per_s: float = 0.0
    """Attention node: bytes of keys and values that its kernel read a second, in recent steps that read
    enough to mean something; 0 while there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """Identity, address and load of one living node."""

    kind: NodeKind
    node_id: str
    incarnation: str
    address: str
    """host:port of its gRPC service."""
    load: NodeLoad = NodeLoad()

    @property
    def name(self) -> str:
        """Transport name, unique for each start of the node."""
        return node_name(self.node_id, self.incarnation)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form; ``from_dict`` reads it back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Self:
        """Read ``to_dict``'s form."""
        load = dict(fields["load"])
        load["prepared_nodes"] = tuple(load["prepared_nodes"])
        load["tails"] = tuple((node_id, count) for node_id, count in load["tails"])
        if load.get("step_times") is not None:
            load["step_times"] = StepTimes(**load["step_times"])
        return cls(**{**fields, "kind": NodeKind(fields["kind"]), "load": NodeLoad(**load)})
