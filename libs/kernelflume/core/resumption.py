"""What a run of a request must know to go on where another run of it ended."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernelflume.core.ranges import SequenceRoute


@dataclass(frozen=True, slots=True)
class Resumption:
    """How far a request has come: all of its state that its prompt and sampling do not say.

    The place in a grammar and what penalties count follow from the tokens. So a run that begins with this
    goes on as the one before would have: with the same token, up to the rounding of another batch.
    """

    output_token_ids: tuple[int, ...] = ()
    """Tokens generated before, none of which is told again. They count as output everywhere: for
    ``max_tokens``, ``min_tokens``, penalties and the grammar."""
    random_key: int | None = None
    """Key of the request's random numbers (64 bits, signed), as the run before told it with its first token;
    None where the seed is the key, or nothing is drawn."""
    route: SequenceRoute = field(default_factory=SequenceRoute)
    """Where another run holds the keys and values of all tokens but the last, in named blocks; empty where
    none does."""


FROM_THE_START = Resumption()
"""Of a request that nobody has run."""
