"""Keys and values that leave layer by layer: the nodes end up with the same keys and values."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.inprocess import CONFIG, GEOMETRY, LocalAttentionNode, LocalWeightNode

from kernelflume.anode.host_pages import HostPages
from kernelflume.core.errors import PeerLostError
from kernelflume.transport.loopback import LoopbackNetwork
from kernelflume.wnode.exchange import StepExchange
from kernelflume.wnode.link import Link
from kernelflume.wnode.messages import LinkLost

if TYPE_CHECKING:
    import torch

    from kernelflume.transport.base import WritePlan

PROMPT = random.Random(5).choices(range(256), k=40)  # noqa: S311 - a repeatable prompt


class World:
    """A weight node and attention nodes."""

    def __init__(self, num_nodes: int = 1, **options: int) -> None:
        network = LoopbackNetwork()
        self.weight = LocalWeightNode(network, **options)  # type: ignore[arg-type]
        self.nodes = [LocalAttentionNode(f"a{i}#1", network, num_pages=100) for i in range(num_nodes)]
        for node in self.nodes:
            self.weight.attach(node)
        self.weight.adopt(*(f"a{i}" for i in range(num_nodes)))

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            node.stop()
        self.weight.close()


def held(world: World) -> tuple[list[int], np.ndarray]:
    """Return the tokens of a request, and what all pools held at its end: a row a token.

    Their order is that of the bits, and so of layer 0's keys, which no attention comes before.
    """
    with world:
        # The last block is full, so that it is given a name: pages are not freed before they hold all of it.
        world.weight.submit("r", PROMPT, max_tokens=5)
        (tokens,) = world.weight.run_all("r")
        world.weight.turn_until(lambda: not any(node.num_used_pages for node in world.nodes))
        pages = [node.pool.storage for node in world.nodes]
        bits = [storage.bits for storage in pages if isinstance(storage, HostPages)]
        rows = np.concatenate([one.transpose(3, 0, 1, 2, 4).reshape(one.shape[3], -1) for one in bits])
        return tokens, np.unique(rows[rows.any(axis=1)], axis=0)


@pytest.mark.parametrize("max_range_tokens", [0, 12])
def test_the_same_keys_and_values_arrive(max_range_tokens: int) -> None:
    streamed = World(2, stream_kv_rows=9, max_range_tokens=max_range_tokens)
    whole = World(2, stream_kv_rows=0, max_range_tokens=max_range_tokens)
    tokens, bits = held(streamed)
    expected_tokens, expected_bits = held(whole)
    assert tokens == expected_tokens
    # Partials of several nodes are merged as they come, so that later layers may be rounded otherwise.
    np.testing.assert_allclose(bits.view(np.float32), expected_bits.view(np.float32), rtol=1e-4, atol=1e-6)
    assert len(bits) == len(PROMPT) + 4
    traffic, unstreamed = (world.weight.links.kv_traffic for world in (streamed, whole))
    assert traffic.layer_bytes >= 12 * GEOMETRY.token_bytes
    assert traffic.layer_bytes + traffic.step_bytes == unstreamed.step_bytes
    assert unstreamed.layer_bytes == 0


def test_rows_below_the_threshold_leave_in_one_write() -> None:
    with World(stream_kv_rows=17) as world:
        world.weight.submit("r", PROMPT, max_tokens=2)
        world.weight.run_all("r")
        assert world.weight.links.kv_traffic.layer_bytes == 0
        assert world.weight.links.kv_traffic.step_bytes == 41 * GEOMETRY.token_bytes


def test_layers_go_once_a_slot_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with World() as world:
        free_slot = Link.free_slot
        asked: list[int] = []

        def none_at_first(link: Link) -> int | None:
            asked.append(1)
            return None if len(asked) < CONFIG.num_layers else free_slot(link)

        monkeypatch.setattr(Link, "free_slot", none_at_first)
        world.weight.submit("r", PROMPT[:16], max_tokens=3)
        assert world.weight.run_all("r") == [world.weight.reference(PROMPT[:16], 3)]
        assert world.weight.links.kv_traffic.layer_bytes == 16 * GEOMETRY.token_bytes


def test_a_step_that_is_given_up_leaves_its_layers_to_be_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader of the first chunk is lost in the second; the other node got layers of it already."""
    with World(2, max_range_tokens=16) as world:
        weight = world.weight
        collect = StepExchange.collect_partials
        lost: list[str] = []

        def lose_once(self: StepExchange, layer: int, own: object) -> torch.Tensor:
            if layer == 1 and self.has_readers and not lost:
                lost.append(self._readers[0].link.node_name)
                raise PeerLostError(lost[0], "cut in the test")
            return collect(self, layer, own)  # type: ignore[arg-type]

        monkeypatch.setattr(StepExchange, "collect_partials", lose_once)
        weight.submit("r", PROMPT, max_tokens=5)
        weight.turn_until(lambda: bool(lost))
        assert weight.run_all("r") == [weight.reference(PROMPT, 5)]
        assert len(weight.recorder.of(LinkLost)) == 1


def test_a_node_lost_while_layers_leave_costs_others_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with World(2) as world:
        weight = world.weight
        post = type(weight.transport).post
        lost: list[str] = []

        def fail_once(transport: object, plan: WritePlan, index: int, notice: bytes = b"") -> None:
            if not notice and not lost:
                lost.append(plan.peer)
                raise PeerLostError(plan.peer, "cut in the test")
            post(transport, plan, index, notice)  # type: ignore[arg-type]

        monkeypatch.setattr(type(weight.transport), "post", fail_once)
        weight.submit("r", PROMPT, max_tokens=5)
        assert weight.run_all("r") == [weight.reference(PROMPT, 5)]
        assert [event.node_name for event in weight.recorder.of(LinkLost)] == lost
