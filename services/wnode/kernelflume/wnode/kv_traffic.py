"""How many bytes of keys and values a weight node sent, and what of that held up a step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class KvTraffic:
    """Sums since the start. Owned by the step loop; reports carry copies."""

    layer_bytes: int = 0
    """Sent layer by layer, while the next layers were computed."""
    step_bytes: int = 0
    """Sent in one write once a step was computed."""
    graph_bytes: int = 0
    """Sent by captured steps, which exchange by themselves."""
    layer_exposed_s: float = 0.0
    """From the end of the last layer until the nodes were told, in steps that sent layer by layer."""
    step_exposed_s: float = 0.0
    """The same of the other steps, captured ones aside."""
