"""Which attention nodes take tokens and tails, after the rules of the weight node's placement. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kernelflume.scaler.sim.shards import Shard


def level_out(room: Mapping[Shard, int], tokens: int) -> dict[Shard, int]:
    """Spread tokens so that shards are left as equally free as can be.

    Args:
        room: tokens that each shard takes; together at least ``tokens``.
        tokens: to be spread.

    Returns:
        Tokens for each shard; they add up to ``tokens``.
    """
    order = sorted(room, key=lambda shard: (-room[shard], shard.number))
    added = dict.fromkeys(order, 0)
    left = tokens
    for count in range(1, len(order) + 1):
        # With the first `count` shards in use: what brings them down to the room of the next one.
        floor = room[order[count]] if count < len(order) else 0
        takes = sum(room[shard] - floor for shard in order[:count])
        if takes >= tokens:
            level, extra = divmod(takes - tokens, count)
            for index, shard in enumerate(order[:count]):
                added[shard] = room[shard] - floor - level - (1 if index < extra else 0)
            left = 0
            break
    if left:
        raise ValueError(f"{tokens} tokens do not fit {dict(room)}")
    return added


def fill_in_order(room: Mapping[Shard, int], tokens: int) -> dict[Shard, int]:
    """Put tokens on as few shards as can be, the oldest first, so that the newest may be drained.

    Args:
        room: tokens that each shard takes; together at least ``tokens``.
        tokens: to be placed.
    """
    added = dict.fromkeys(room, 0)
    for shard in sorted(room, key=lambda one: one.number):
        added[shard] = min(room[shard], tokens)
        tokens -= added[shard]
    return added


def roomiest(shards: Sequence[Shard], room: Mapping[Shard, int]) -> Shard | None:
    """Return the shard with the most room for one more tail, or None where none has room for a step."""
    able = [shard for shard in shards if room[shard] > len(shard.tails)]
    return max(able, key=lambda shard: (room[shard] / (1 + len(shard.tails)), -shard.number), default=None)
