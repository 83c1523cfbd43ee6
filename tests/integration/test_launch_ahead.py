"""Steps launched before the one ahead of them is settled: tokens are the same, whatever happens meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.byte_grammars import byte_toolkit, matcher_of
from tests.device_world import DeviceWorld, wrong_keys
from tests.inprocess import PAGE_TOKENS

from kernelflume.core.grammar import GrammarKind
from kernelflume.wnode.gpu import lane_draws
from kernelflume.wnode.messages import Adopted, LinkLost, RoutesChanged, Stop

World = Callable[..., DeviceWorld]


@pytest.fixture
def world() -> Iterator[World]:
    made: list[DeviceWorld] = []

    def build(num_nodes: int, **options: Any) -> DeviceWorld:
        made.append(DeviceWorld(num_nodes, **options))
        return made[-1]

    yield build
    for each in made:
        each.close()


def prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(256), k=length)  # noqa: S311 - a repeatable prompt


def decode_until_ahead(device: DeviceWorld, request_id: str, num_tokens: int = 3) -> None:
    """Turn until a request has tokens and a step is under way that was launched ahead."""
    weight = device.weight
    weight.turn_until(
        lambda: len(weight.recorder.tokens[request_id]) >= num_tokens and weight.engine._under_way is not None
    )


def is_settled(device: DeviceWorld) -> bool:
    return not device.weight.runner._under_way  # type: ignore[union-attr]


@pytest.mark.parametrize("microbatches", ["1", "2"])
@pytest.mark.parametrize("max_range_tokens", [0, 3])
@pytest.mark.parametrize("num_nodes", [1, 2])
def test_tokens_equal_dense_attention_with_and_without(
    world: World, num_nodes: int, max_range_tokens: int, microbatches: str
) -> None:
    for ahead in (False, True):
        device = world(
            num_nodes,
            async_scheduling=ahead,
            max_range_tokens=max_range_tokens,
            microbatches=microbatches,
            seed=num_nodes,
        )
        weight = device.weight
        prompts = {f"r{length}": prompt(length, length) for length in (1, 5, 9, 17)}
        for name, tokens in prompts.items():
            weight.submit(name, tokens, max_tokens=8 + len(tokens) % 3)
        expected = [weight.reference(tokens, 8 + len(tokens) % 3) for tokens in prompts.values()]
        assert weight.run_all(*prompts) == expected
        assert device.most_under_way == (2 if ahead else 1)
        assert is_settled(device)
        device.drain()


def test_steady_decode_uploads_nothing_and_keeps_one_step_ahead(world: World) -> None:
    device = world(1)
    weight = device.weight
    for number in range(3):
        weight.submit(str(number), prompt(5 + number, number), max_tokens=40)
    decode_until_ahead(device, "2", 6)
    stage, steps = device.exchange.stages[0], weight.engine._num_steps
    before = stage.num_uploads
    tokens = len(weight.recorder.tokens["2"])
    for _ in range(20):
        weight.engine.turn()
        assert weight.engine._under_way is not None
    assert stage.num_uploads == before
    assert weight.engine._num_steps == steps + 20
    assert len(weight.recorder.tokens["2"]) == tokens + 20


def test_a_stop_token_ends_a_request_and_its_row_in_the_next_step_is_in_vain(world: World) -> None:
    device = world(2, max_range_tokens=3)
    weight = device.weight
    prompts = {str(number): prompt(6, number) for number in range(3)}
    whole = weight.reference(prompts["1"], 12)
    weight.submit("0", prompts["0"], max_tokens=25)
    weight.submit("1", prompts["1"], max_tokens=25, stop_token_ids=(whole[9],))
    weight.submit("2", prompts["2"], max_tokens=25)
    end = whole.index(whole[9])
    assert weight.run_all("1") == [whole[:end]]
    # Its row is in the step under way, so its pages are not free yet; nor does anything wait for that step.
    [ended] = weight.engine._ended
    assert ended.request_id == "1"
    assert weight.engine._under_way is not None
    assert [ended.sequence_id in link.sequences for link in held(device)].count(True) > 0
    weight.engine.turn()
    assert weight.engine._under_way is not None
    assert not weight.engine._ended
    assert weight.run_all("0", "2") == [weight.reference(prompts[name], 25) for name in ("0", "2")]
    assert weight.recorder.finished["1"].stop_token_id == whole[9]
    device.drain()


def held(device: DeviceWorld) -> list[Any]:
    """The attention nodes' links."""
    return [link for node in device.nodes for link in node.exchange._links.values()]


def test_a_request_whose_length_is_known_is_left_out_of_the_next_step(world: World) -> None:
    device = world(1)
    weight = device.weight
    prompts = {str(number): prompt(4, number) for number in range(4)}
    for number, tokens in enumerate(prompts.values()):
        weight.submit(str(number), tokens, max_tokens=6 + 2 * number)
    rows: list[int] = []

    def turn_and_look() -> bool:
        if weight.engine._under_way is not None:
            rows.append(weight.engine._under_way.batch.num_rows)
        assert not weight.engine._ended
        return len(weight.recorder.finished) == 4

    weight.turn_until(turn_and_look)
    assert sorted(set(rows)) == [1, 2, 3, 4]
    for number, tokens in enumerate(prompts.values()):
        assert weight.recorder.tokens[str(number)] == weight.reference(tokens, 6 + 2 * number)
    device.drain()


def test_tokens_are_read_right_by_a_host_that_comes_when_both_steps_are_done(world: World) -> None:
    device = world(1)
    weight = device.weight
    runner = weight.runner
    assert runner is not None
    settle = runner.settle

    def late(step: Any) -> Any:
        device.until(lambda: all(launched.done.query() for launched in runner._under_way), ticking=True)
        return settle(step)

    runner.settle = late  # type: ignore[method-assign]
    for number in range(3):
        sampling: dict[str, Any] = {"temperature": 1.0, "seed": 3, "top_k": 9} if number else {}
        weight.submit(str(number), prompt(5, number), max_tokens=14, **sampling)
    outputs = weight.run_all("0", "1", "2")
    assert outputs[0] == weight.reference(prompt(5), 14)
    assert device.most_under_way == 2
    other = world(1, async_scheduling=False).weight
    for number in (1, 2):
        other.submit(str(number), prompt(5, number), max_tokens=14, temperature=1.0, seed=3, top_k=9)
    assert outputs[1:] == other.run_all("1", "2")


def test_a_cancel_is_taken_when_the_step_under_way_is_settled(world: World) -> None:
    device = world(1)
    weight = device.weight
    for number in range(3):
        weight.submit(str(number), prompt(5, number), max_tokens=20)
    decode_until_ahead(device, "2")
    weight.cancel("1")
    weight.engine.turn()
    assert is_settled(device)
    assert "1" not in weight.recorder.finished
    weight.engine.turn()
    assert weight.recorder.finished["1"].finish_reason == "abort"
    tokens = weight.recorder.tokens["1"]
    assert tokens == weight.reference(prompt(5, 1), 20)[: len(tokens)]
    assert weight.run_all("0", "2") == [weight.reference(prompt(5, number), 20) for number in (0, 2)]
    device.drain()


def test_a_request_that_comes_is_prefilled_between_two_steps(world: World) -> None:
    device = world(1)
    weight = device.weight
    weight.submit("0", prompt(5, 0), max_tokens=30)
    decode_until_ahead(device, "0")
    weight.submit("1", prompt(21, 1), max_tokens=9)
    assert weight.run_all("0", "1") == [
        weight.reference(prompt(5, 0), 30),
        weight.reference(prompt(21, 1), 9),
    ]
    device.drain()


@pytest.mark.parametrize("how", ["killed", "silent"])
def test_a_lost_node_undoes_both_steps_and_only_its_sequences_are_recomputed(world: World, how: str) -> None:
    device = world(2, max_num_seqs=4)
    weight = device.weight
    prompts = {str(number): prompt(6, number) for number in range(4)}
    for name, tokens in prompts.items():
        weight.submit(name, tokens, max_tokens=24)
    decode_until_ahead(device, "3")
    on_lost = {s.request_id for s in weight.scheduler.running if "a1" in s.route.node_ids}
    assert 0 < len(on_lost) < 4
    if how == "killed":
        device.kill("a1#1")
    else:
        device.silent.add("a1#1")
        device.has_patience = False
    weight.turn_until(lambda: bool(weight.recorder.of(LinkLost)))
    device.has_patience = True
    assert is_settled(device)
    [lost] = weight.recorder.of(LinkLost)
    assert lost.node_name == "a1#1"
    assert lost.num_sequences == len(on_lost)
    restarted = {s.request_id for s in weight.scheduler.waiting}
    assert restarted == on_lost
    # What the other node holds of its sequences is what is committed.
    weight.turn_until(lambda: device.link_of("a0").is_quiet)
    [there] = [link for link in held(device) if link in device.nodes[0].exchange._links.values()]
    for sequence in weight.scheduler.running:
        if sequence.request_id not in on_lost:
            assert there.sequences[sequence.sequence_id].num_tokens <= sequence.num_computed + 2
    weight.adopt("a0")
    assert weight.run_all(*prompts) == [weight.reference(tokens, 24) for tokens in prompts.values()]
    assert device.most_under_way == 2
    device.drain()


@pytest.mark.parametrize("seed", range(4))
def test_steps_that_are_given_up_overwrite_nothing_that_a_settled_step_has_to_file(
    world: World, seed: int
) -> None:
    """Both steps under way put keys and values in slots; a node may be late in reading what lay there."""
    device = world(2, max_num_seqs=4, seed=seed)
    weight = device.weight
    prompts = {str(number): prompt(6, number) for number in range(4)}
    for name, tokens in prompts.items():
        weight.submit(name, tokens, max_tokens=20)
    decode_until_ahead(device, "3")
    device.pace["a0#1"] = 0.02
    weight.engine.turn()
    settled = {s.sequence_id: s.num_computed for s in weight.scheduler.running if "a0" in s.route.node_ids}
    device.kill("a1#1")
    weight.turn_until(lambda: bool(weight.recorder.of(LinkLost)))
    assert [lost.node_name for lost in weight.recorder.of(LinkLost)] == ["a1#1"]
    del device.pace["a0#1"]
    assert {s.sequence_id for s in weight.scheduler.running}.issuperset(settled)
    device.until(lambda: all(link.is_idle for link in device.links if link.name == "a0#1"), ticking=True)
    assert wrong_keys(device, "a0#1") == []
    weight.adopt("a0")
    assert weight.run_all(*prompts) == [weight.reference(tokens, 20) for tokens in prompts.values()]
    device.drain()


def test_a_scale_event_is_taken_between_two_steps_and_tails_move_once(world: World) -> None:
    device = world(2, active=1)
    weight = device.weight
    prompts = {str(number): prompt(5, number) for number in range(4)}
    for name, tokens in prompts.items():
        weight.submit(name, tokens, max_tokens=30)
    decode_until_ahead(device, "3")
    weight.adopt("a0", "a1")
    weight.engine.turn()
    assert is_settled(device)
    decode_until_ahead(device, "3", len(weight.recorder.tokens["3"]) + 4)
    assert {s.route.tail_node_id for s in weight.scheduler.running} == {"a0", "a1"}
    assert all(len(s.route.ranges) <= 2 for s in weight.scheduler.running)
    weight.adopt("a1", draining=("a0",))
    decode_until_ahead(device, "3", len(weight.recorder.tokens["3"]) + 4)
    assert {s.route.tail_node_id for s in weight.scheduler.running} == {"a1"}
    assert weight.run_all(*prompts) == [weight.reference(tokens, 30) for tokens in prompts.values()]
    assert len(weight.recorder.of(Adopted)) == 3
    device.drain()


def test_a_full_pool_launches_nothing_ahead_and_the_youngest_gives_way(world: World) -> None:
    device = world(1, num_pages=9)
    weight = device.weight
    prompts = {str(number): prompt(5, number) for number in range(4)}
    for name, tokens in prompts.items():
        weight.submit(name, tokens, max_tokens=11)
    assert weight.run_all(*prompts) == [weight.reference(tokens, 11) for tokens in prompts.values()]
    assert not weight.recorder.of(LinkLost)
    device.drain()


@pytest.mark.parametrize("promptness", [0.7, 0.02])
def test_a_token_that_found_no_page_is_computed_again_and_the_step_behind_gives_nothing(
    world: World, promptness: float
) -> None:
    device = world(1, num_pages=16, promptness=promptness)
    weight = device.weight
    prompts = {str(number): prompt(4, number) for number in range(2)}
    for name, tokens in prompts.items():
        weight.submit(name, tokens, max_tokens=14)
    decode_until_ahead(device, "1")
    # Another weight node takes all pages, which this one hears of too late.
    book = device.nodes[0].pool.book
    taken = book.allocate(book.num_free)
    link = weight.links.of_node("a0")
    assert link is not None

    def has_failed() -> bool:
        link.num_free_pages = 8
        return any(s.num_restarts for s in (*weight.scheduler.running, *weight.scheduler.waiting))

    weight.turn_until(has_failed)
    assert not weight.recorder.of(LinkLost)
    book.release(taken)
    weight.turn_until(lambda: link.is_quiet)
    assert weight.run_all(*prompts) == [weight.reference(tokens, 14) for tokens in prompts.values()]
    device.drain()


def test_draws_behind_the_step_are_the_sampler_s(world: World) -> None:
    outputs = []
    for ahead in (False, True):
        device = world(1, async_scheduling=ahead)
        weight = device.weight
        for number in range(3):
            weight.submit(
                str(number), prompt(5, number), max_tokens=15, temperature=1.0, seed=number, top_p=0.9
            )
        weight.submit("greedy", prompt(4, 9), max_tokens=12)
        outputs.append(weight.run_all("0", "1", "2", "greedy"))
        assert device.most_under_way == (2 if ahead else 1)
        device.drain()
    assert outputs[0] == outputs[1]
    assert len(set(outputs[0][0])) > 1


def test_a_draw_that_is_not_settled_undoes_the_step_behind_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_draws, "HEAD", 16)
    outputs = []
    undone = 0
    for ahead in (False, True):
        device = world(1, async_scheduling=ahead)
        weight = device.weight
        for number in range(3):
            weight.submit(
                str(number), prompt(5, number), max_tokens=20, temperature=1.5, seed=number, top_p=0.5
            )
        weight.turn_until(lambda: len(weight.recorder.finished) == 3)  # noqa: B023 - called in this round
        outputs.append([weight.recorder.tokens[str(number)] for number in range(3)])
        undone += weight.engine._waits_until > 0
        device.drain()
    assert outputs[0] == outputs[1]
    assert undone == 1


@pytest.mark.parametrize(
    "sampling",
    [
        {"frequency_penalty": 0.5},
        {"presence_penalty": 0.5, "temperature": 1.0, "seed": 3},
        {"repetition_penalty": 1.2},
        {"logprobs": 1},
        {"logit_bias": ((7, 9.0),)},
        {"allowed_token_ids": (3, 5, 8, 13)},
        {"min_tokens": 11, "stop_token_ids": tuple(range(0, 256, 2))},
    ],
)
def test_no_step_with_a_row_that_the_host_chooses_has_another_behind_it(
    world: World, sampling: dict[str, Any]
) -> None:
    outputs = []
    for ahead in (False, True):
        device = world(1, async_scheduling=ahead)
        weight = device.weight
        weight.submit("ruled", prompt(6), max_tokens=12, **sampling)
        weight.submit("plain", prompt(5), max_tokens=30)

        def is_over(device: DeviceWorld = device) -> bool:
            running = device.weight.scheduler.running
            is_ruled = any(not sequence.is_simple for sequence in running)
            assert not (is_ruled and device.weight.engine._under_way)
            return len(device.weight.recorder.finished) == 2

        weight.turn_until(is_over)
        outputs.append([weight.recorder.tokens[name] for name in ("ruled", "plain")])
        logprobs = weight.recorder.logprobs["ruled"]
        assert len(logprobs) == (len(outputs[-1][0]) if "logprobs" in sampling else 0)
        # Once the plain one is alone steps are launched ahead again.
        assert device.most_under_way == (2 if ahead else 1)
        device.drain()
    assert outputs[0] == outputs[1]
    assert outputs[1][1] == weight.reference(prompt(5), 30)


def test_a_grammar_is_followed_and_steps_go_ahead_again_behind_its_end(world: World) -> None:
    toolkit = byte_toolkit()
    outputs = []
    for ahead in (False, True):
        device = world(2, async_scheduling=ahead, max_range_tokens=4)
        weight = device.weight
        weight.submit("free", prompt(5), max_tokens=40)
        decode_until(device, "free", 3)
        matcher = matcher_of(toolkit, GrammarKind.REGEX, r"\d{4}-\d{2}-\d{2}")
        weight.submit("date", prompt(9), matcher=matcher, temperature=1.0, seed=5, max_tokens=20)
        before = device.most_under_way
        device.most_under_way = 0
        outputs.append(weight.run_all("date")[0])
        assert device.most_under_way == 1
        assert weight.run_all("free") == [weight.reference(prompt(5), 40)]
        assert before == device.most_under_way == (2 if ahead else 1)
        device.drain()
    assert outputs[0] == outputs[1]
    assert bytes(outputs[0])[4:5] == b"-"


@pytest.mark.parametrize("num_nodes", [1, 2])
def test_blocks_are_found_while_steps_are_launched_ahead_and_when_their_request_ends_in_vain(
    world: World, num_nodes: int
) -> None:
    outputs = []
    for ahead in (False, True):
        device = world(num_nodes, async_scheduling=ahead, max_range_tokens=2 * PAGE_TOKENS)
        weight = device.weight
        shared = prompt(3 * PAGE_TOKENS, 3)
        whole = weight.reference(shared, 8)
        assert whole[7] not in whole[:7]
        weight.submit("first", shared, max_tokens=30, stop_token_ids=(whole[7],))
        weight.submit("other", prompt(5, 2), max_tokens=60)
        decode_until(device, "first", 3)
        weight.submit("beside", [*shared, 4], max_tokens=20)  # while the first one goes on
        [first, beside] = weight.run_all("first", "beside")
        # What was generated is found too, and its last block did not take the token in vain.
        weight.submit("behind", [*shared, *first, 9], max_tokens=9)
        [behind, other] = weight.run_all("behind", "other")
        found = {
            name: sum(output.num_cached_tokens for output in weight.recorder.outputs_of(name))
            for name in ("first", "beside", "behind")
        }
        assert found["first"] == 0
        assert found["beside"] == 3 * PAGE_TOKENS
        computed = 3 * PAGE_TOKENS + len(first)
        assert found["behind"] == computed - computed % PAGE_TOKENS
        outputs.append([first, beside, behind, other])
        assert outputs[-1][1:] == [
            weight.reference([*shared, 4], 20),
            weight.reference([*shared, *first, 9], 9),
            weight.reference(prompt(5, 2), 60),
        ]
        assert first == whole[:7]
        device.drain()
    assert outputs[0] == outputs[1]


def decode_until(device: DeviceWorld, request_id: str, num_tokens: int) -> None:
    """Turn until a request has so many tokens."""
    tokens = device.weight.recorder.tokens
    device.weight.turn_until(lambda: len(tokens[request_id]) >= num_tokens)


def test_the_loop_stops_with_nothing_under_way(world: World) -> None:
    device = world(1)
    weight = device.weight
    weight.submit("0", prompt(5), max_tokens=40)
    decode_until_ahead(device, "0")
    weight.inbox.put(Stop())
    while not weight.engine._stopping:
        weight.engine.turn()
    assert weight.engine._under_way is None
    assert is_settled(device)


def test_routes_are_published_once_and_ended_ones_are_forgotten(world: World) -> None:
    device = world(2, max_range_tokens=4)
    weight = device.weight
    for number in range(3):
        weight.submit(str(number), prompt(5, number), max_tokens=12)
    weight.run_all("0", "1", "2")
    device.drain()
    ended = [key for event in weight.recorder.of(RoutesChanged) for key in event.ended]
    assert sorted(ended) == [1, 2, 3]
