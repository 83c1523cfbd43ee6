"""What a living node says of itself: the record under its lease, renewed until it ends or dies."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any, Self, TypeGuard

from kernelflume.core.figures import is_number, is_whole
from kernelflume.core.names import node_name
from kernelflume.core.profile import StepTimes
from kernelflume.core.roles import WeightNodeRole

_MOST_COUNT = 2**31 - 1
_MOST_TOKENS = 2**48
"""More tokens, bytes of them or epochs than any cluster sees, and exact in every format they travel in."""
_LARGE_COUNTS = frozenset(
    {
        "adopted_epoch",
        "capacity_tokens",
        "used_tokens",
        "reserved_tokens",
        "cached_tokens",
        "shared_tokens",
        "pinned_tokens",
        "waiting_tokens",
    }
)
_MOST_S = 1e6
_LEAST_STEP_S = 1e-6
"""No step takes less; a rate is divided by it."""
_MOST_SCAN = 1e18


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
    cached_tokens: int = 0
    """Attention node: tokens kept though no sequence holds them; their pages count as free."""
    shared_tokens: int = 0
    """Attention node: tokens that sequences were given without being computed again, since its start."""
    pinned_tokens: int = 0
    """Attention node: tokens of pinned blocks, held by sequences or cached."""
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
    role: WeightNodeRole = WeightNodeRole.BOTH
    """Weight node: what routers send it."""
    scan_bytes_per_s: float = 0.0
    """Attention node: bytes of keys and values that its kernel read a second, in recent steps that read
    enough to mean something; 0 while there are none."""


_FIGURES = frozenset(field.name for field in fields(NodeLoad))


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
    def from_dict(cls, record: dict[str, Any]) -> tuple[Self, tuple[str, ...]]:
        """Read ``to_dict``'s form.

        A figure of the load that cannot be is left at its default: a node that reports one is alive
        nevertheless, and whoever reads it must neither stumble nor plan with it.

        Returns:
            The record, and the names of the figures that could not be.
        """
        told = dict(record["load"])
        told["prepared_nodes"] = tuple(told["prepared_nodes"])
        told["tails"] = tuple((node_id, count) for node_id, count in told["tails"])
        if told.get("step_times") is not None:
            told["step_times"] = StepTimes(**told["step_times"])
        told["role"] = WeightNodeRole.of(told.get("role", ""))
        # A newer version may report more.
        told = {name: value for name, value in told.items() if name in _FIGURES}
        sound = {name: value for name, value in told.items() if _can_be(name, value)}
        known = cls(**{**record, "kind": NodeKind(record["kind"]), "load": NodeLoad(**sound)})
        return known, tuple(sorted(told.keys() - sound.keys()))


def _can_be(name: str, value: object) -> bool:
    """Tell whether a figure is one that a node can have."""
    if isinstance(value, StepTimes):
        times = (value.step_s, value.projection_s, value.attention_s, value.post_attention_s)
        return _is_count(value.rows) and all(map(_is_time, (*times, value.overhead_s)))
    if name == "tails":
        return isinstance(value, tuple) and all(_is_count(count) for _, count in value)
    if name in ("prepared_nodes", "step_times", "role"):
        return True
    if name == "decode_step_s":
        return _is_time(value) and (value == 0 or value >= _LEAST_STEP_S)
    if name == "scan_bytes_per_s":
        return is_number(value) and 0 <= value <= _MOST_SCAN
    return _is_count(value, _MOST_TOKENS if name in _LARGE_COUNTS else _MOST_COUNT)


def _is_time(value: object) -> TypeGuard[float]:
    # NaN is in no range.
    return is_number(value) and 0 <= value <= _MOST_S


def _is_count(value: object, most: int = _MOST_COUNT) -> bool:
    return is_whole(value) and 0 <= value <= most
