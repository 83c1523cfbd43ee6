"""Which part of requests a weight node takes."""

from __future__ import annotations

from enum import StrEnum


class WeightNodeRole(StrEnum):
    """What routers send a weight node. It could do all of it whatever its role."""

    BOTH = "both"
    """Whole requests, and either part of one that is divided."""
    PREFILL = "prefill"
    """Prompts: another node goes on after the first token."""
    DECODE = "decode"
    """What comes after the first token."""

    @property
    def takes_prompts(self) -> bool:
        """True when it computes prompts."""
        return self is not WeightNodeRole.DECODE

    @property
    def takes_decoding(self) -> bool:
        """True when it generates tokens after the first one."""
        return self is not WeightNodeRole.PREFILL

    @classmethod
    def of(cls, told: str) -> WeightNodeRole:
        """Return a role as a node tells it; one that tells none, or none known here, takes everything."""
        try:
            return cls(told)
        except ValueError:
            return cls.BOTH
