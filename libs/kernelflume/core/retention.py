"""How long a request wants the blocks of its prompt to stay in the pool, beyond the ordinary rule."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kernelflume.core.errors import InvalidRequestError

PIN_S = 24 * 3600.0
"""Seconds after its last use for which a block stays pinned."""


class Retention(StrEnum):
    """What a request says of its prompt, by the words of OpenAI's ``prompt_cache_retention``."""

    UNCHANGED = ""
    """Nothing: blocks stay pinned or not, as they are."""
    IN_MEMORY = "in_memory"
    """The ordinary rule: pins of its blocks end."""
    DAY = "24h"
    """Pin them until ``PIN_S`` after their last use."""

    @classmethod
    def of(cls, text: str) -> Retention:
        """Read what another service wrote.

        Raises:
            InvalidRequestError: nobody can keep blocks so.
        """
        try:
            return cls(text)
        except ValueError:
            known = ", ".join(member.value for member in cls if member)
            raise InvalidRequestError(
                f"prompt_cache_retention must be one of {known}, not {text!r:.40}",
                parameter="prompt_cache_retention",
            ) from None


@dataclass(frozen=True, slots=True)
class Pinning:
    """What is to become of the pins of a context's blocks."""

    retention: Retention = Retention.UNCHANGED
    num_tokens: int = 0
    """It concerns the whole blocks among so many first tokens: the prompt's."""


AS_IT_IS = Pinning()
"""Pins stay as they are."""
