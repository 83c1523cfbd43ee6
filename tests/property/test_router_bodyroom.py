"""The room for large bodies: whatever comes, waits and gives up, it is never too full nor left unused."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from kernelflume.router.bodyroom import SMALL_BODY_BYTES, BodyRoom
from kernelflume.router.metrics import RouterMetrics

UNIT = SMALL_BODY_BYTES + 1
ROOM, SHARE = 8 * UNIT, 5 * UNIT
METRICS = RouterMetrics("m", list)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["come", "come", "leave", "give up", "both"]), st.integers(0, 2), st.integers(1, 5)
    ),
    max_size=40,
)


@dataclass
class Body:
    """One body, as a task that holds its place until told."""

    owner: str
    num_bytes: int
    is_held: bool = False
    is_done: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, room: BodyRoom) -> None:
        with room.enter(self.owner) as place:
            await place.need(self.num_bytes)
            self.is_held = True
            await self.is_done.wait()
            self.is_held = False


async def settle() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


@settings(deadline=None)
@given(STEPS)
def test_the_room_is_bounded_and_used(steps: list[tuple[str, int, int]]) -> None:
    asyncio.run(check(steps))


async def check(steps: list[tuple[str, int, int]]) -> None:
    room = BodyRoom(ROOM, share_bytes=SHARE, max_waiting=64, timeout_s=60.0, metrics=METRICS)
    bodies: list[Body] = []
    tasks: list[asyncio.Task[None]] = []
    for action, owner, number in steps:
        if action == "come":
            bodies.append(Body(f"key {owner}", number * UNIT))
            tasks.append(asyncio.create_task(bodies[-1].run(room)))
        elif tasks:
            place = (3 * owner + number) % len(tasks)
            if action in {"leave", "both"}:
                bodies[place].is_done.set()
            if action in {"give up", "both"}:
                # In the same turn in which room may come free for it, too.
                tasks[(place + 1) % len(tasks)].cancel()
        await settle()
        alive = [body for body, task in zip(bodies, tasks, strict=True) if not task.done()]
        held = [body for body in alive if body.is_held]
        assert room.num_bytes == sum(body.num_bytes for body in held) <= ROOM
        shares = {name: sum(body.num_bytes for body in held if body.owner == name) for name in owners(alive)}
        assert max(shares.values(), default=0) <= SHARE
        # Whoever is next does not fit, of those whose key may have more: the first of each key that waits.
        waiting = [body for body in alive if not body.is_held]
        firsts = [next(body for body in waiting if body.owner == name) for name in owners(waiting)]
        ready = [body for body in firsts if shares[body.owner] + body.num_bytes <= SHARE]
        if ready:
            following = min(ready, key=lambda body: (shares[body.owner], alive.index(body)))
            assert room.num_bytes + following.num_bytes > ROOM
    for body in bodies:
        body.is_done.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert room.num_bytes == 0


def owners(bodies: list[Body]) -> list[str]:
    return list(dict.fromkeys(body.owner for body in bodies))
