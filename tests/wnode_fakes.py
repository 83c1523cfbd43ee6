"""Parts of a weight node without a transport, for unit tests of what decides."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kernelflume.core.sampling import SamplingParameters
from kernelflume.wnode.ledger import AdoptedTable, Ledger
from kernelflume.wnode.sequence import Sequence


@dataclass
class FakeLink:
    """The figures of a link that the ledger reads."""

    node_id: str
    page_tokens: int = 4
    num_pages: int = 100
    num_usable_pages: int = 100
    is_settling: bool = False


@dataclass
class FakeLinks:
    """Links by node id."""

    links: dict[str, FakeLink] = field(default_factory=dict)

    def of_node(self, node_id: str) -> FakeLink | None:
        return self.links.get(node_id)

    @property
    def page_tokens(self) -> int:
        return next((link.page_tokens for link in self.links.values()), 0)

    def all(self) -> list[FakeLink]:
        return list(self.links.values())


def make_ledger(
    *links: FakeLink,
    max_range_tokens: int = 0,
    spread_tokens: int = 0,
    active: tuple[str, ...] | None = None,
) -> Ledger:
    """Build a ledger whose table has all links active."""
    known = FakeLinks({link.node_id: link for link in links})
    ledger = Ledger(known, max_range_tokens, spread_tokens)  # type: ignore[arg-type]
    ids = tuple(link.node_id for link in links) if active is None else active
    ledger.adopt(AdoptedTable(1, ids, frozenset(ids)))
    return ledger


def make_sequence(num_prompt: int, *, request_id: str = "r", **sampling: Any) -> Sequence:
    """Build a waiting sequence with a prompt of ``num_prompt`` tokens."""
    parameters = SamplingParameters(**({"temperature": 0.0, "max_tokens": 100} | sampling))
    return Sequence(request_id, list(range(1, num_prompt + 1)), parameters, random_key=7)
