from __future__ import annotations

from typing import cast

import numpy as np
import pytest
import torch
from tests.anode import OnePlanKernel, Tokens, WeightNode, with_dtypes
from tests.exchange_node import PAGE_TOKENS, Node, ask, check_layer, queries_of, store

from kernelflume.anode.control import ConnectOrder
from kernelflume.anode.links import prepare_link
from kernelflume.core.errors import HandshakeError
from kernelflume.tensor.reference import dense_attention
from kernelflume.transport import wire
from kernelflume.transport.loopback import LoopbackTransport


@pytest.mark.parametrize(
    ("dtype", "kv_dtype", "tolerance"),
    [
        ("float32", "float32", 1e-5),
        ("bfloat16", "bfloat16", 3e-2),
        ("float16", "float16", 4e-3),
        ("float32", "bfloat16", 1e-5),
        ("float32", "float8_e4m3fn", 1e-5),
        ("bfloat16", "float8_e4m3fn", 3e-2),
    ],
)
def test_attention_equals_the_oracle_over_ragged_sequences(
    dtype: str, kv_dtype: str, tolerance: float
) -> None:
    geometry = with_dtypes(dtype, kv_dtype)
    node = Node(geometry)
    weight = node.link()
    generator = torch.Generator().manual_seed(1)
    lengths = {11: 1, 12: 4, 13: 9}
    tokens = {sequence: Tokens.random(geometry, length, generator) for sequence, length in lengths.items()}
    rows = torch.cat([tokens[sequence].rows(0, length) for sequence, length in lengths.items()], dim=1)
    weight.append(rows, [(sequence, length, 0) for sequence, length in lengths.items()])
    # One row, a chunk of rows, and rows of a sequence that holds nothing here.
    plan = [(12, 1, 4), (13, 5, 9), (11, 1, 1), (99, 2, 0)]
    queries = queries_of(geometry, 9)
    for layer in range(geometry.num_layers):
        weight.query(queries[layer], layer=layer, step=1, plan=plan)
        node.turn()
        *_, answer = weight.poll()
        assert answer == wire.Partial(0, layer, 1, wire.RowStatus.OK, 9, node.pool.num_free_pages)
        held = [(1, tokens[12]), (5, tokens[13]), (1, tokens[11])]
        check_layer(weight, queries[layer][:7], held, layer, bucket_rows=9, tolerance=tolerance)
        partial = weight.partial(9)
        assert partial.lse[7:].eq(-torch.inf).all()
        assert partial.out[7:].eq(0).all()


@pytest.mark.parametrize(("names", "num_lanes"), [(("w#1", "v#1"), 1), (("w#1",), 2)])
def test_steps_that_take_turns_layer_by_layer_keep_their_own_plans(
    names: tuple[str, ...], num_lanes: int
) -> None:
    """Those of two weight nodes, and of two microbatches of one."""
    node = Node()
    weights = {name: node.link(name, num_lanes=num_lanes) for name in names}
    lanes = [(weight, lane) for weight in weights.values() for lane in range(num_lanes)]
    held = [store(node, weight, 5 + number, 3 + 4 * number) for number, (weight, _) in enumerate(lanes)]
    for layer in range(node.geometry.num_layers):
        for number, (weight, lane) in enumerate(lanes):
            num_rows, num_tokens = 1 + number, held[number].num_tokens
            queries = queries_of(node.geometry, num_rows, seed=number)[layer]
            plan = [(5 + number, num_rows, num_tokens)] if layer == 0 else []
            weight.query(queries, layer=layer, step=9, lane=lane, plan=plan)
            node.turn()
            [answer] = weight.poll()
            assert cast("wire.Partial", answer).status is wire.RowStatus.OK
            check_layer(weight, queries, [(num_rows, held[number])], layer, lane=lane)


def test_a_sequence_grows_token_by_token_over_steps() -> None:
    node = Node()
    weight = node.link()
    tokens = Tokens.random(node.geometry, 10, torch.Generator().manual_seed(3))
    for position in range(10):
        weight.append(tokens.rows(position, position + 1), [(5, 1, position)])
        held = Tokens(tokens.keys[:, : position + 1], tokens.values[:, : position + 1])
        answer, queries = ask(node, weight, [(5, 1, position + 1)], step=position)
        assert answer.status is wire.RowStatus.OK
        check_layer(weight, queries, [(1, held)], 0)
    assert len(node.exchange._links["w#1"].sequences[5].extents) == 1


def test_a_scattered_sequence_is_merged_over_its_extents() -> None:
    node = Node(num_pages=6)
    weight = node.link(max_rows=32)
    for sequence in range(1, 7):
        store(node, weight, sequence, PAGE_TOKENS)
    sequences = node.exchange._links["w#1"].sequences
    weight.free(*(sequence for sequence, held in sequences.items() if held.pages[0] % 2 == 0))
    node.turn()
    tokens = store(node, weight, 9, 3 * PAGE_TOKENS)
    assert len(sequences[9].extents) == 3
    answer, queries = ask(node, weight, [(9, 4, 12)])
    assert answer.num_free_pages == 0
    check_layer(weight, queries, [(4, tokens)], 0)


def test_positions_may_jump_where_another_node_held_tokens() -> None:
    node = Node()
    weight = node.link()
    tokens = Tokens.random(node.geometry, 6, torch.Generator().manual_seed(4))
    weight.append(tokens.rows(0, 4), [(5, 4, 0)])
    weight.append(tokens.rows(4, 6), [(5, 2, 100)])
    answer, queries = ask(node, weight, [(5, 1, 6)])
    assert answer.status is wire.RowStatus.OK
    check_layer(weight, queries, [(1, tokens)], 0)


def test_a_query_waits_for_the_append_that_it_names() -> None:
    node = Node()
    weight = node.link()
    tokens = Tokens.random(node.geometry, 3, torch.Generator().manual_seed(5))
    send = weight.append(tokens.rows(0, 3), [(5, 3, 0)], notice_later=True)
    queries = queries_of(node.geometry, 1)[0]
    weight.query(queries, layer=0, step=1, plan=[(5, 1, 3)])
    node.turn()
    assert weight.poll() == []
    send()
    node.turn()
    appended, partial = weight.poll()
    assert appended == wire.Appended(0, 0, 1, 15)
    assert isinstance(partial, wire.Partial)
    check_layer(weight, queries, [(1, tokens)], 0)


def test_appends_are_filed_in_order_of_their_counter() -> None:
    node = Node()
    weight = node.link()
    tokens = Tokens.random(node.geometry, 5, torch.Generator().manual_seed(6))
    first = weight.append(tokens.rows(0, 3), [(5, 3, 0)], notice_later=True)
    weight.append(tokens.rows(3, 5), [(5, 2, 3)])
    node.turn()
    assert weight.poll() == []
    first()
    node.turn()
    answers = weight.poll()
    assert [cast("wire.Appended", answer).counter for answer in answers] == [1, 2]
    answer, queries = ask(node, weight, [(5, 1, 5)])
    assert answer.status is wire.RowStatus.OK
    check_layer(weight, queries, [(1, tokens)], 0)


def test_a_query_that_can_be_computed_goes_before_a_waiting_append() -> None:
    node = Node()
    weight = node.link()
    tokens = store(node, weight, 5, 3)
    more = Tokens.random(node.geometry, 1, torch.Generator().manual_seed(7))
    weight.append(more.rows(0, 1), [(6, 1, 0)])
    queries = queries_of(node.geometry, 1)[0]
    weight.query(queries, layer=0, step=1, plan=[(5, 1, 3)], appends=1)
    node.turn()
    kinds = [type(answer) for answer in weight.poll()]
    assert kinds == [wire.Partial, wire.Appended]
    check_layer(weight, queries, [(1, tokens)], 0)


def test_a_plan_stays_valid_while_its_sequence_grows() -> None:
    node = Node()
    weight = node.link()
    tokens = store(node, weight, 5, 3)
    queries = queries_of(node.geometry, 1)
    weight.query(queries[0], layer=0, step=1, plan=[(5, 1, 3)])
    node.turn()
    more = Tokens.random(node.geometry, 1, torch.Generator().manual_seed(7))
    weight.append(more.rows(0, 1), [(5, 1, 3)])
    weight.query(queries[1], layer=1, step=1)
    node.turn()
    check_layer(weight, queries[1], [(1, tokens)], 1)


@pytest.mark.parametrize("num_held", [0, 2, 4])
def test_a_plan_of_other_tokens_than_held_is_a_mismatch_for_the_whole_step(num_held: int) -> None:
    node = Node()
    weight = node.link()
    store(node, weight, 5, 3)
    answer, queries = ask(node, weight, [(5, 1, num_held)])
    assert answer.status is wire.RowStatus.MISMATCH
    weight.query(queries, layer=1, step=1)
    node.turn()
    assert cast("wire.Partial", weight.poll()[-1]).status is wire.RowStatus.MISMATCH
    assert ask(node, weight, [(5, 1, 3)], step=2)[0].status is wire.RowStatus.OK


def test_a_layer_without_its_plan_is_a_mismatch() -> None:
    node = Node()
    weight = node.link()
    weight.query(queries_of(node.geometry, 1)[0], layer=2, step=4)
    node.turn()
    assert cast("wire.Partial", weight.poll()[-1]).status is wire.RowStatus.MISMATCH


def test_an_exhausted_pool_drops_the_sequence_whole_and_serves_the_others() -> None:
    node = Node(num_pages=3)
    weight = node.link()
    kept = store(node, weight, 5, PAGE_TOKENS)
    store(node, weight, 6, PAGE_TOKENS)
    more = Tokens.random(node.geometry, 7, torch.Generator().manual_seed(8))
    # Sequence 6 takes the last page, then wants another; 5 follows and must not lose its own rows.
    weight.append(more.rows(0, 7), [(6, 3, 4), (6, 3, 7), (5, 1, 4)])
    node.turn()
    (answer,) = weight.poll()
    assert answer == wire.Appended(0, 0, 3, 1, failed=(6,))
    grown = Tokens(
        torch.cat([kept.keys, more.keys[:, 6:]], 1), torch.cat([kept.values, more.values[:, 6:]], 1)
    )
    partial, queries = ask(node, weight, [(5, 1, 5)])
    assert partial.status is wire.RowStatus.OK
    check_layer(weight, queries, [(1, grown)], 0)
    assert ask(node, weight, [(6, 1, 4)], step=2)[0].status is wire.RowStatus.MISMATCH
    assert node.exchange.statistics().num_tokens == 5


def test_an_append_under_way_does_not_bring_a_dropped_sequence_back() -> None:
    node = Node(num_pages=1)
    weight = node.link()
    rows = Tokens.random(node.geometry, 6, torch.Generator()).rows(0, 6)
    weight.append(rows[:, :5], [(6, 5, 0)])
    weight.append(rows[:, 5:], [(6, 1, 5)])
    node.turn()
    answers = [cast("wire.Appended", answer) for answer in weight.poll()]
    assert [answer.failed for answer in answers] == [(6,), (6,)]
    assert node.exchange.statistics().num_free_pages == 1


def test_positions_that_go_back_drop_the_sequence() -> None:
    node = Node()
    weight = node.link()
    store(node, weight, 5, 3)
    weight.append(Tokens.random(node.geometry, 1, torch.Generator()).rows(0, 1), [(5, 1, 2)])
    node.turn()
    assert cast("wire.Appended", weight.poll()[-1]).failed == (5,)
    assert node.exchange.statistics().num_free_pages == 16


def test_a_free_gives_the_pages_back_and_is_answered_even_if_empty() -> None:
    node = Node()
    weight = node.link()
    store(node, weight, 5, 9)
    weight.free(5, 77)
    weight.free()
    node.turn()
    assert weight.poll() == [wire.Freed(16), wire.Freed(16)]
    assert node.exchange.statistics().num_tokens == 0


def test_an_append_that_a_free_overtook_leaks_no_page() -> None:
    node = Node()
    weight = node.link()
    tokens = Tokens.random(node.geometry, 3, torch.Generator())
    send = weight.append(tokens.rows(0, 3), [(5, 2, 0), (6, 1, 0)], notice_later=True)
    weight.free(5)
    node.turn()
    send()
    node.turn()
    assert weight.poll() == [wire.Freed(16), wire.Appended(0, 0, 1, 15, failed=(5,))]
    assert node.exchange.statistics().num_tokens == 1


def test_a_free_between_two_layers_leaves_the_other_rows_right() -> None:
    node = Node()
    weight = node.link()
    store(node, weight, 5, 3)
    tokens = store(node, weight, 6, 3)
    queries = queries_of(node.geometry, 2)
    weight.query(queries[0], layer=0, step=1, plan=[(5, 1, 3), (6, 1, 3)])
    node.turn()
    weight.free(5)
    weight.query(queries[1], layer=1, step=1)
    node.turn()
    partial = weight.partial(2)
    expected = dense_attention(queries[1][1:], tokens.keys[1], tokens.values[1])
    torch.testing.assert_close(partial.out[1:].double(), expected.out, rtol=0, atol=1e-5)


def test_a_warm_notice_is_answered_by_a_write_of_the_largest_bucket() -> None:
    node = Node()
    weight = node.link()
    weight.partials[0][:] = 255
    weight.warm()
    node.turn()
    assert weight.poll() == [wire.Warm(answer=True, num_free_pages=16)]
    assert (weight.partials[0] == 0).all()


def test_lanes_are_independent() -> None:
    node = Node()
    weight = node.link(num_lanes=3)
    held = [store(node, weight, 10 + lane, 2 + lane, lane=lane) for lane in range(3)]
    queries = queries_of(node.geometry, 1)[0]
    for lane in (2, 0, 1):
        weight.query(queries, layer=0, step=7 + lane, plan=[(10 + lane, 1, 2 + lane)], lane=lane)
    node.turn()
    answers = [cast("wire.Partial", answer) for answer in weight.poll()]
    assert {(answer.lane, answer.step) for answer in answers} == {(0, 7), (1, 8), (2, 9)}
    for lane in range(3):
        check_layer(weight, queries, [(1, held[lane])], 0, lane=lane)


def test_two_weight_nodes_use_the_same_sequence_ids() -> None:
    node = Node()
    one, two = node.link("w#1"), node.link("v#1", max_rows=8)
    tokens_one = store(node, one, 5, 3)
    tokens_two = store(node, two, 5, 3)
    for weight, tokens in ((one, tokens_one), (two, tokens_two)):
        _, queries = ask(node, weight, [(5, 1, 3)])
        check_layer(weight, queries, [(1, tokens)], 0)
    one.free(5)
    node.turn()
    assert ask(node, two, [(5, 1, 3)], step=2)[0].status is wire.RowStatus.OK
    assert [(link.weight_node, link.num_tokens) for link in node.exchange.statistics().links] == [
        ("w#1", 0), ("v#1", 3),
    ]  # fmt: skip


def test_a_vanished_weight_node_loses_its_pages_and_the_other_goes_on() -> None:
    node = Node()
    one, two = node.link("w#1"), node.link("v#1")
    store(node, one, 5, 8)
    tokens = store(node, two, 5, 3)
    one.query(queries_of(node.geometry, 1)[0], layer=0, step=1, plan=[(5, 1, 8)])
    two_queries = queries_of(node.geometry, 1)[0]
    two.query(two_queries, layer=0, step=1, plan=[(5, 1, 3)])
    node.network.cut("w#1")
    node.turn()
    check_layer(two, two_queries, [(1, tokens)], 0)
    statistics = node.exchange.statistics()
    assert statistics.links_lost == 1
    assert [link.weight_node for link in statistics.links] == ["v#1"]
    assert statistics.num_tokens == 3
    assert statistics.num_free_pages == 15


def bad_notices() -> dict[str, bytes]:
    return {
        "garbage": b"\xff\x00garbage",
        "empty": b"",
        "truncated": wire.Free((1, 2)).encode()[:-3],
        "an answer": wire.Freed(3).encode(),
        "lane": wire.Query(9, 1, 1, 0, 1, None).encode(),
        "layer": wire.Query(0, 3, 1, 0, 1, None).encode(),
        "no rows": wire.Query(0, 1, 1, 0, 0, None).encode(),
        "too many rows": wire.Query(0, 1, 1, 0, 17, None).encode(),
        "plan of other rows": wire.Query(0, 0, 1, 0, 2, plan_of((5, 1, 0))).encode(),
        "plan with an empty share": wire.Query(0, 0, 1, 0, 1, plan_of((5, 1, 0), (6, 0, 0))).encode(),
        "append lane": wire.Append(9, 0, 1, 1, entries_of((5, 1, 0))).encode(),
        "append slot": wire.Append(0, 2, 1, 1, entries_of((5, 1, 0))).encode(),
        "append rows": wire.Append(0, 0, 1, 17, entries_of((5, 17, 0))).encode(),
        "entries of other rows": wire.Append(0, 0, 1, 3, entries_of((5, 1, 0))).encode(),
        "append counter 0": wire.Append(0, 0, 0, 1, entries_of((5, 1, 0))).encode(),
        "append counter ahead": wire.Append(0, 0, 3, 1, entries_of((5, 1, 0))).encode(),
    }


def plan_of(*entries: tuple[int, int, int]) -> np.ndarray:
    return np.array(list(entries), wire.PLAN_DTYPE)


def entries_of(*entries: tuple[int, int, int]) -> np.ndarray:
    return np.array(list(entries), wire.APPEND_DTYPE)


@pytest.mark.parametrize("name", bad_notices())
def test_a_notice_that_breaks_the_protocol_ends_that_link_alone(name: str) -> None:
    node = Node()
    bad, good = node.link("bad#1"), node.link("good#1")
    tokens = store(node, good, 5, 3)
    bad.transport.notify("a#1", bad_notices()[name])
    node.turn()
    statistics = node.exchange.statistics()
    assert statistics.notices_rejected == 1
    assert [link.weight_node for link in statistics.links] == ["good#1"]
    answer, queries = ask(node, good, [(5, 1, 3)])
    assert answer.status is wire.RowStatus.OK
    check_layer(good, queries, [(1, tokens)], 0)


def test_a_notice_of_a_stranger_is_counted_and_ignored() -> None:
    node = Node()
    stranger = LoopbackTransport("x#1", node.network)
    stranger.connect("a#1", b"a#1")
    stranger.notify("a#1", wire.Free((1,)).encode())
    node.turn()
    assert node.exchange.statistics().notices_rejected == 1


def test_a_query_of_an_older_step_is_ignored() -> None:
    node = Node()
    weight = node.link()
    store(node, weight, 5, 3)
    ask(node, weight, [(5, 1, 3)], step=4)
    weight.query(queries_of(node.geometry, 1)[0], layer=0, step=3, plan=[(5, 1, 3)])
    node.turn()
    assert weight.poll() == []
    statistics = node.exchange.statistics()
    assert statistics.notices_rejected == 1
    assert len(statistics.links) == 1


def test_a_newer_query_replaces_one_that_waits() -> None:
    node = Node()
    weight = node.link()
    tokens = store(node, weight, 5, 3)
    queries = queries_of(node.geometry, 1)
    weight.query(queries[0], layer=0, step=1, plan=[(5, 1, 3)], appends=2)
    node.turn()
    weight.query(queries[1], layer=0, step=2, plan=[(5, 1, 3)])
    node.turn()
    answers = [cast("wire.Partial", answer) for answer in weight.poll()]
    assert [answer.step for answer in answers] == [2]
    check_layer(weight, queries[1], [(1, tokens)], 0)


@pytest.mark.parametrize("name", ["w#1", "w#2"])
def test_a_weight_node_that_links_again_replaces_its_old_link(name: str) -> None:
    node = Node()
    weight = node.link("w#1")
    store(node, weight, 5, 9)
    again = node.link(name)
    statistics = node.exchange.statistics()
    assert [(link.weight_node, link.num_tokens) for link in statistics.links] == [(name, 0)]
    assert statistics.num_free_pages == 16
    tokens = store(node, again, 5, 2)
    _, queries = ask(node, again, [(5, 1, 2)])
    check_layer(again, queries, [(1, tokens)], 0)


def test_memory_of_a_dropped_link_is_kept_until_nobody_can_write_there() -> None:
    node = Node()
    node.link()
    lanes = node.exchange.statistics().buffer_bytes
    assert lanes > 0
    node.exchange.drop("w#1", "test")
    assert node.exchange.statistics().buffer_bytes == lanes
    node.clock.advance(59)
    node.turn()
    assert node.exchange.statistics().buffer_bytes == lanes
    node.clock.advance(2)
    node.turn()
    assert node.exchange.statistics().buffer_bytes == 0


def test_every_answer_rings() -> None:
    node = Node()
    weight = node.link()
    weight.warm()
    store(node, weight, 5, 1)
    weight.free(5)
    node.turn()
    assert node.doorbell.rung == ["127.0.0.1:7"] * 3


def test_a_refused_ring_ends_the_link() -> None:
    node = Node()
    weight = node.link()
    store(node, weight, 5, 3)
    node.doorbell.gone.add("w#1")
    weight.free()
    node.turn()
    assert node.exchange.links == ()
    assert node.exchange.statistics().num_free_pages == 16
    assert node.doorbell.lines == {}


def test_an_unusable_doorbell_address_refuses_the_link() -> None:
    node = Node()
    transport = LoopbackTransport("w#1", node.network)
    weight = WeightNode(transport, node.geometry)
    order = ConnectOrder(
        weight_node="w#1", metadata=b"w#1", num_lanes=1, max_rows=16,
        partial_regions=weight.partial_regions, doorbell_address="nowhere",
    )  # fmt: skip
    with pytest.raises(HandshakeError, match="doorbell address 'nowhere'"):
        prepare_link(order, node.geometry, node.transport, node.pool.device, kernel=node.kernel)


def test_a_link_that_cannot_be_prepared_leaves_nothing_registered() -> None:
    node = Node()
    weight = WeightNode(LoopbackTransport("w#1", node.network), node.geometry)
    order = ConnectOrder(
        weight_node="w#1", metadata=b"someone else", num_lanes=1, max_rows=16,
        partial_regions=weight.partial_regions, doorbell_address="",
    )  # fmt: skip
    with pytest.raises(HandshakeError, match="not that of w#1"):
        prepare_link(order, node.geometry, node.transport, node.pool.device, kernel=node.kernel)
    assert node.transport._regions == {}


def test_a_link_without_room_for_its_kernels_leaves_nothing_registered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Node()
    weight = WeightNode(LoopbackTransport("w#1", node.network), node.geometry)
    order = ConnectOrder(
        weight_node="w#1", metadata=b"w#1", num_lanes=1, max_rows=16,
        partial_regions=weight.partial_regions, doorbell_address="",
    )  # fmt: skip

    def no_memory() -> OnePlanKernel:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(node.kernel, "apart", no_memory)
    with pytest.raises(RuntimeError, match="out of memory"):
        prepare_link(order, node.geometry, node.transport, node.pool.device, kernel=node.kernel)
    assert node.transport._regions == {}


def test_an_unexpected_error_ends_that_link_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    one, two = node.link("w#1"), node.link("v#1")
    store(node, two, 5, 3)

    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(node.exchange._links["w#1"].buffers[0], "append_rows", fail)
    one.append(Tokens.random(node.geometry, 1, torch.Generator()).rows(0, 1), [(6, 1, 0)])
    node.turn()
    assert node.exchange.links == ("v#1",)
    assert ask(node, two, [(5, 1, 3)])[0].status is wire.RowStatus.OK
