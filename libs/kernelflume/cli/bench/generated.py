"""Sessions drawn from a seed: each turn's prompt is the one before, its answer, and something new."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kernelflume.cli.bench.workload import ExtendingPrompt, Session, Turn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernelflume.cli.bench.draws import Draws


@dataclass(frozen=True, slots=True)
class SessionShape:
    """How sessions are drawn; lengths in tokens, before they are scaled."""

    turns: Draws
    system_tokens: int
    """At the beginning of every session, the same in all."""
    first_tokens: Draws
    turn_tokens: Draws
    output_tokens: Draws
    think_s: Draws


def generate_sessions(shape: SessionShape, seed: int) -> Iterator[Session]:
    """Yield sessions without end. The n-th is the same for the same shape and seed."""
    for index in itertools.count():
        generator = np.random.default_rng([seed, index])
        name = f"session-{index}"
        turns = []
        for place in range(shape.turns.draw_count(generator)):
            num_shared = shape.system_tokens if place == 0 else 0
            fresh = shape.turn_tokens if place else shape.first_tokens
            turns.append(
                Turn(
                    name,
                    ExtendingPrompt(fresh.draw_count(generator), num_shared),
                    shape.output_tokens.draw_count(generator),
                    think_s=shape.think_s.draw(generator) if place else 0.0,
                    hit_tokens=num_shared if index else 0,
                )
            )
        yield Session(name, tuple(turns))
