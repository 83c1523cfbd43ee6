"""The engine against real attention-node exchanges over the in-memory transport.

Greedy tokens must equal those of dense attention, whatever the nodes, the splits and the events.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.engine_rig import EngineRig, prompt
from tests.inprocess import CONFIG, PAGE_TOKENS, LocalAttentionNode, LocalWeightNode

from kernelflume.core.errors import HandshakeError
from kernelflume.core.geometry import FP8
from kernelflume.transport.loopback import LoopbackNetwork
from kernelflume.wnode.messages import Adopted, LinkFailed, LinkLost, LinkOffer, StepOutput

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def rig() -> Iterator[EngineRig]:
    with EngineRig() as built:
        yield built


@pytest.mark.parametrize("num_nodes", [1, 2, 3])
@pytest.mark.parametrize("max_range_tokens", [0, 3])
def test_tokens_equal_dense_attention(rig: EngineRig, num_nodes: int, max_range_tokens: int) -> None:
    weight, _ = rig(num_nodes, max_range_tokens=max_range_tokens)
    prompts = {f"r{length}": prompt(length, length) for length in (1, 2, 5, 17, 40)}
    for name, tokens in prompts.items():
        weight.submit(name, tokens)
    outputs = weight.run_all(*prompts)
    assert outputs == [weight.reference(tokens, 12) for tokens in prompts.values()]
    assert all(weight.recorder.finished[name].finish_reason == "length" for name in prompts)


@pytest.mark.parametrize("kv_dtype", [FP8, "bfloat16"])
def test_narrow_keys_and_values_give_the_same_tokens_on_any_number_of_nodes(
    rig: EngineRig, kv_dtype: str
) -> None:
    geometry = CONFIG.geometry("float32", kv_dtype, "tiny", revision="1")
    prompts = {f"r{length}": prompt(length, length) for length in (1, 2, 5, 17, 40)}
    outputs: list[list[list[int]]] = []
    # Prompts in chunks of another size, ranges cut elsewhere, other rows side by side.
    for num_nodes, max_range_tokens, max_rows, max_num_seqs in ((1, 0, 64, 8), (3, 3, 7, 8), (3, 0, 5, 1)):
        weight, _ = rig(
            num_nodes,
            geometry=geometry,
            max_range_tokens=max_range_tokens,
            max_rows=max_rows,
            max_num_seqs=max_num_seqs,
            name=f"w{len(outputs)}#1",
        )
        for name, tokens in prompts.items():
            weight.submit(name, tokens)
        outputs.append(weight.run_all(*prompts))
    assert outputs[0] == [weight.reference(tokens, 12) for tokens in prompts.values()]
    assert outputs[1] == outputs[0]
    assert outputs[2] == outputs[0]


def test_a_node_of_another_format_of_keys_and_values_is_refused_by_name(rig: EngineRig) -> None:
    weight, _ = rig(1)
    geometry = CONFIG.geometry("float32", FP8, "tiny", revision="1")
    node = LocalAttentionNode("b#1", LoopbackNetwork(), num_pages=4, geometry=geometry)
    try:
        offer = weight.connector.open("b#1")
        assert isinstance(offer, LinkOffer)
        with pytest.raises(HandshakeError, match=f"geometry.kv_dtype differs: .*'float32'.*'{FP8}'"):
            offer.handshake.check(node.handshake)
    finally:
        node.stop()


def test_a_node_with_pages_of_another_size_is_refused_by_the_name_of_the_setting(rig: EngineRig) -> None:
    weight, _ = rig(1)
    node = LocalAttentionNode("b#1", rig.network, num_pages=4)
    try:
        offer = weight.connector.open("b#1")
        assert isinstance(offer, LinkOffer)
        answer = replace(node.connect(offer), page_tokens=2 * PAGE_TOKENS)
        refused = weight.connector.complete("b#1", answer)
        assert isinstance(refused, LinkFailed)
        assert refused.reason == "page_tokens differs: b#1 has 8, the other attention nodes of w#1 have 4"
    finally:
        node.stop()


def test_a_traced_request_is_told_of_its_steps_and_their_waits(rig: EngineRig) -> None:
    weight, _ = rig(2, max_range_tokens=3)
    weight.submit("traced", prompt(9), traced=True)
    weight.submit("other", prompt(5))
    weight.run_all("traced", "other")
    outputs = [output for event in weight.recorder.of(StepOutput) for output in event.outputs]
    steps = [step for output in outputs if output.request_id == "traced" for step in output.steps]
    assert sum(step.num_rows for step in steps) == 9 + 11
    assert all(step.seconds > 0 and step.batch_rows >= step.num_rows for step in steps)
    waits = [wait for step in steps for wait in step.waits]
    assert {node for node, _ in waits} == {"a0", "a1"}
    assert all(0 <= waited_s <= max(step.seconds for step in steps) for _, waited_s in waits)
    assert not any(output.steps for output in outputs if output.request_id == "other")


def test_all_pages_are_free_after_the_last_request(rig: EngineRig) -> None:
    weight, nodes = rig(2, max_range_tokens=5)
    for number in range(6):
        weight.submit(str(number), prompt(10 + number, number))
    weight.run_all(*map(str, range(6)))
    weight.turn_until(lambda: all(node.num_used_pages == 0 for node in nodes))


def test_joining_nodes_take_over_tails_and_tokens_do_not_change(rig: EngineRig) -> None:
    weight, nodes = rig(3, active=1)
    prompts = {str(number): prompt(9, number) for number in range(6)}
    for name, tokens in prompts.items():
        weight.submit(name, tokens, max_tokens=30)
    weight.turn_until(lambda: len(weight.recorder.tokens["5"]) >= 8)
    before = {s.request_id: s.route for s in weight.scheduler.running}
    weight.adopt("a0", "a1", "a2")
    weight.turn_until(lambda: len(weight.recorder.tokens["5"]) >= 14)
    tails = {s.route.tail_node_id for s in weight.scheduler.running}
    assert tails == {"a0", "a1", "a2"}
    for sequence in weight.scheduler.running:
        assert sequence.route.ranges[0].node_id == before[sequence.request_id].ranges[0].node_id
    weight.adopt("a0", draining=("a1", "a2"))
    weight.turn_until(lambda: len(weight.recorder.tokens["5"]) >= 20)
    assert {s.route.tail_node_id for s in weight.scheduler.running} == {"a0"}
    assert any("a1" in s.route.node_ids for s in weight.scheduler.running)
    outputs = weight.run_all(*prompts)
    assert outputs == [weight.reference(tokens, 30) for tokens in prompts.values()]
    weight.turn_until(lambda: all(node.num_used_pages == 0 for node in nodes))
    moves = [adopted.num_tails_moved for adopted in weight.recorder.of(Adopted)]
    assert moves[0] == 0
    assert moves[1] == 4
    assert moves[2] == 4


def test_link_is_closed_only_when_no_range_is_there(rig: EngineRig) -> None:
    weight, _ = rig(2, active=1)
    weight.submit("r", prompt(5), max_tokens=40)
    weight.turn_until(lambda: bool(weight.recorder.tokens["r"]))
    weight.close_link("a0#1")
    weight.turn_until(lambda: bool(weight.recorder.of(LinkFailed)))
    assert "1 sequences have ranges" in weight.recorder.of(LinkFailed)[0].reason
    weight.close_link("a1#1")
    weight.turn_until(lambda: weight.links.get("a1#1") is None)
    assert weight.run_all("r") == [weight.reference(prompt(5), 40)]


def test_cancel_ends_within_a_step_and_frees_everything(rig: EngineRig) -> None:
    weight, nodes = rig(2, max_range_tokens=4)
    weight.submit("gone", prompt(30), max_tokens=400)
    weight.submit("stays", prompt(7), max_tokens=20)
    weight.turn_until(lambda: len(weight.recorder.tokens["gone"]) > 3)
    weight.cancel("gone")
    weight.engine.turn()
    count = len(weight.recorder.tokens["gone"])
    assert weight.recorder.finished["gone"].finish_reason == "abort"
    assert weight.run_all("stays") == [weight.reference(prompt(7), 20)]
    assert len(weight.recorder.tokens["gone"]) == count
    weight.turn_until(lambda: all(node.num_used_pages == 0 for node in nodes))


def test_cancelled_while_waiting_or_unknown(rig: EngineRig) -> None:
    weight, _ = rig(1, max_num_seqs=1)
    weight.submit("first", prompt(3))
    weight.submit("second", prompt(4))
    weight.cancel("second")
    weight.cancel("never heard of")
    weight.run_all("first", "second")
    assert weight.recorder.tokens["second"] == []


def test_full_pool_makes_the_youngest_give_way_without_changing_tokens(rig: EngineRig) -> None:
    weight, nodes = rig(2, num_pages=8)
    prompts = {str(number): prompt(8, number) for number in range(4)}
    for name, tokens in prompts.items():
        weight.submit(name, tokens, max_tokens=20)
    outputs = weight.run_all(*prompts)
    assert outputs == [weight.reference(tokens, 20) for tokens in prompts.values()]
    weight.turn_until(lambda: all(node.num_used_pages == 0 for node in nodes))


def test_request_that_outgrows_the_pool_fails_alone(rig: EngineRig) -> None:
    weight, nodes = rig(1, num_pages=6)
    weight.submit("large", prompt(10), max_tokens=200)
    weight.submit("small", prompt(3), max_tokens=5)
    weight.run_all("large", "small")
    assert "keys and values" in weight.recorder.finished["large"].error
    assert weight.recorder.finished["small"].error == ""
    assert weight.recorder.tokens["small"] == weight.reference(prompt(3), 5)
    weight.turn_until(lambda: nodes[0].num_used_pages == 0)


def test_request_larger_than_the_pool_is_refused_at_once(rig: EngineRig) -> None:
    weight, _ = rig(1, num_pages=2)
    weight.submit("large", prompt(PAGE_TOKENS * 3))
    weight.run_all("large")
    assert "hold 8" in weight.recorder.finished["large"].error


def test_killed_node_costs_its_own_sequences_a_recomputation(rig: EngineRig) -> None:
    weight, nodes = rig(2)
    prompts = {str(number): prompt(6, number) for number in range(4)}
    for name, tokens in prompts.items():
        weight.submit(name, tokens, max_tokens=25)
    weight.turn_until(lambda: len(weight.recorder.tokens["3"]) >= 6)
    affected = [s.request_id for s in weight.scheduler.running if "a1" in s.route.node_ids]
    assert 0 < len(affected) < 4
    nodes[1].transport.close()
    outputs = weight.run_all(*prompts)
    assert outputs == [weight.reference(tokens, 25) for tokens in prompts.values()]
    (lost,) = weight.recorder.of(LinkLost)
    assert lost.node_name == "a1#1"
    assert lost.num_sequences == len(affected)


def test_requests_outlive_the_loss_of_every_node(rig: EngineRig) -> None:
    """One after the other: sequences that were just placed anew lose their node before a row is stored."""
    weight, nodes = rig(3, active=2)
    prompts = {str(number): prompt(6, number) for number in range(4)}
    for name, tokens in prompts.items():
        weight.submit(name, tokens, max_tokens=25)
    weight.turn_until(lambda: len(weight.recorder.tokens["3"]) >= 6)
    for node in nodes[:2]:
        node.transport.close()
    for _ in range(12):
        weight.engine.turn()
    assert len(weight.recorder.of(LinkLost)) == 2
    assert weight.recorder.finished == {}
    weight.adopt("a2")
    outputs = weight.run_all(*prompts)
    assert outputs == [weight.reference(tokens, 25) for tokens in prompts.values()]
    weight.turn_until(lambda: nodes[2].num_used_pages == 0)


def test_frozen_node_is_lost_at_the_deadline(rig: EngineRig) -> None:
    weight, nodes = rig(2, exchange_timeout_s=2.0)
    for number in range(4):
        weight.submit(str(number), prompt(6, number), max_tokens=25)
    weight.turn_until(lambda: len(weight.recorder.tokens["3"]) >= 6)
    nodes[1].pause()
    outputs = weight.run_all("0", "1", "2", "3")
    assert outputs == [weight.reference(prompt(6, number), 25) for number in range(4)]
    assert "within 2 s" in weight.recorder.of(LinkLost)[0].reason


def test_frozen_node_is_not_waited_for_once_it_has_left_the_table(rig: EngineRig) -> None:
    weight, nodes = rig(2, exchange_timeout_s=600.0)
    for number in range(4):
        weight.submit(str(number), prompt(6, number), max_tokens=25)
    weight.turn_until(lambda: len(weight.recorder.tokens["3"]) >= 6)
    nodes[1].pause()
    removal = threading.Timer(1.0, weight.adopt, ("a0",))  # while a step waits for it
    removal.start()
    outputs = weight.run_all("0", "1", "2", "3")
    removal.join()
    assert outputs == [weight.reference(prompt(6, number), 25) for number in range(4)]
    assert [loss.reason for loss in weight.recorder.of(LinkLost)] == [
        "it left the routing table and is silent"
    ]


def test_forgotten_node_is_not_waited_for_and_used_again_once_it_is_linked_anew(rig: EngineRig) -> None:
    weight, nodes = rig(2, exchange_timeout_s=600.0)
    for number in range(4):
        weight.submit(str(number), prompt(6, number), max_tokens=25)
    weight.turn_until(lambda: len(weight.recorder.tokens["3"]) >= 6)
    nodes[1].pause()
    forgetting = threading.Timer(1.0, weight.forget_link, (nodes[1].name, "it has dropped this node"))
    forgetting.start()  # while a step waits for it
    weight.turn_until(lambda: bool(weight.recorder.of(LinkLost)))
    forgetting.join()
    assert [loss.reason for loss in weight.recorder.of(LinkLost)] == ["it has dropped this node"]
    nodes[1].exchange.drop(weight.transport.name, "its lease ran out")
    nodes[1].resume()
    weight.attach(nodes[1])
    outputs = weight.run_all("0", "1", "2", "3")
    assert outputs == [weight.reference(prompt(6, number), 25) for number in range(4)]
    weight.forget_link("a9#1", "there is none")
    weight.turn_until(lambda: not weight.inbox.take())


def test_node_that_left_the_table_is_recomputed_elsewhere(rig: EngineRig) -> None:
    weight, _ = rig(2)
    for number in range(4):
        weight.submit(str(number), prompt(6, number), max_tokens=25)
    weight.turn_until(lambda: len(weight.recorder.tokens["3"]) >= 6)
    weight.adopt("a0")
    outputs = weight.run_all("0", "1", "2", "3")
    assert outputs == [weight.reference(prompt(6, number), 25) for number in range(4)]


def test_requests_wait_for_the_first_node(rig: EngineRig) -> None:
    weight, _ = rig(1, active=0)
    weight.submit("r", prompt(6))
    for _ in range(3):
        weight.engine.turn()
    assert "r" not in weight.recorder.finished
    weight.adopt("a0")
    assert weight.run_all("r") == [weight.reference(prompt(6), 12)]


def test_two_weight_nodes_share_attention_nodes(rig: EngineRig) -> None:
    first, nodes = rig(2, max_range_tokens=5)
    second = LocalWeightNode(first.transport._network, name="v#1", max_range_tokens=5)
    for node in nodes:
        second.attach(node)
    second.adopt("a0", "a1")
    first.submit("r", prompt(20, 1))
    second.submit("r", prompt(20, 2))

    def both_have_ended() -> bool:
        second.engine.turn()
        return all("r" in weight.recorder.finished for weight in (first, second))

    first.turn_until(both_have_ended)
    assert first.recorder.tokens["r"] == first.reference(prompt(20, 1), 12)
    assert second.recorder.tokens["r"] == second.reference(prompt(20, 2), 12)
    second.close()


def test_stop_tokens_eos_and_min_tokens(rig: EngineRig) -> None:
    weight, _ = rig(1)
    expected = weight.reference(prompt(6), 12)
    stop = expected[4]
    first = expected.index(stop)
    weight.submit("stopped", prompt(6), stop_token_ids=(stop,))
    weight.run_all("stopped")
    assert weight.recorder.tokens["stopped"] == expected[:first]
    assert weight.recorder.finished["stopped"].finish_reason == "stop"
    assert weight.recorder.finished["stopped"].stop_token_id == stop


def test_seeded_sampling_does_not_depend_on_the_batch(rig: EngineRig) -> None:
    weight, _ = rig(2)
    weight.submit("alone", prompt(6), temperature=1.0, seed=5)
    weight.run_all("alone")
    for number in range(5):
        weight.submit(str(number), prompt(4, number), temperature=1.0)
    weight.submit("beside", prompt(6), temperature=1.0, seed=5)
    weight.run_all("beside")
    assert weight.recorder.tokens["beside"] == weight.recorder.tokens["alone"]
