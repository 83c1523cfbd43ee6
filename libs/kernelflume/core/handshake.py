"""What two nodes must agree on before a byte of keys and values moves between them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from kernelflume.core.errors import HandshakeError

if TYPE_CHECKING:
    from kernelflume.core.geometry import KvGeometry

PROTOCOL_VERSION = 5
"""Version of the notices in ``transport.wire``. History: 1 = query, append, free, partial, appended; 2 adds
step, stepped; 3 adds what the host path's lanes carry; 4 adds find, share, publish and their answers; 5 lets
share and publish pin blocks, and a weight node announce a step before the one ahead of it has ended."""

LAYOUT_ID = "rows-v1"
"""Version of the buffer layout in ``transport.lanes``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handshake:
    """One side's identity; both sides send theirs and compare."""

    node_name: str
    """``node_id#incarnation``, which is also the transport agent's name."""
    geometry: KvGeometry
    transport: str
    """Kind and version of the transport, such as ``nixl 1.5.1``."""
    protocol_version: int = PROTOCOL_VERSION
    layout_id: str = LAYOUT_ID

    def check(self, other: Handshake) -> None:
        """Compare with the other side.

        Raises:
            HandshakeError: a field differs; the message names it and both values.
        """
        ours, theirs = self._comparable(), other._comparable()
        for name, value in ours.items():
            if theirs[name] != value:
                raise HandshakeError(
                    f"{name} differs: {self.node_name} has {value!r}, {other.node_name} has {theirs[name]!r}"
                )

    def _comparable(self) -> dict[str, Any]:
        fields = {
            "protocol_version": self.protocol_version,
            "layout_id": self.layout_id,
            "transport": self.transport,
        }
        return fields | {f"geometry.{name}": value for name, value in asdict(self.geometry).items()}
