"""Sampling through the real engine: the same seeded tokens whatever the nodes, company and restarts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests import sampling_reference
from tests.byte_grammars import EOS, byte_toolkit, matcher_of
from tests.inprocess import LocalAttentionNode, LocalWeightNode

from kernelflume.core.grammar import GrammarKind
from kernelflume.core.resumption import Resumption
from kernelflume.core.sampling import SamplingParameters
from kernelflume.transport.loopback import LoopbackNetwork
from kernelflume.wnode.messages import LinkLost
from kernelflume.wnode.sequence import Sequence

if TYPE_CHECKING:
    from kernelflume.wnode.grammar.toolkit import GrammarToolkit

Rig = Callable[..., LocalWeightNode]
SEEDED: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 1.0, "seed": 1},
    "filters": {"temperature": 0.9, "top_k": 40, "top_p": 0.9, "min_p": 0.01, "seed": 2},
    "penalties": {
        "temperature": 1.2,
        "seed": 3,
        "presence_penalty": 1.0,
        "frequency_penalty": 0.5,
        "repetition_penalty": 1.2,
    },
    "bias": {"temperature": 0.0, "logit_bias": ((7, 100.0),), "presence_penalty": 2.0},
    "allowed": {"temperature": 1.0, "seed": 4, "allowed_token_ids": (3, 5, 8, 13)},
    "greedy": {"temperature": 0.0},
}


@pytest.fixture
def rig() -> Iterator[Rig]:
    parts: list[LocalWeightNode | LocalAttentionNode] = []

    def build(num_nodes: int, *, num_pages: int = 200, **options: Any) -> LocalWeightNode:
        network = LoopbackNetwork()
        weight = LocalWeightNode(network, **options)
        nodes = [LocalAttentionNode(f"a{i}#1", network, num_pages=num_pages) for i in range(num_nodes)]
        parts.extend([weight, *nodes])
        for node in nodes:
            weight.attach(node)
        weight.adopt(*[f"a{i}" for i in range(num_nodes)])
        return weight

    yield build
    for part in parts:
        part.stop() if isinstance(part, LocalAttentionNode) else part.close()


def prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(256), k=length)  # noqa: S311 - a repeatable prompt


def expected(weight: LocalWeightNode, tokens: list[int], count: int, **sampling: Any) -> list[int]:
    """Generate with dense attention and the plain sampler."""
    parameters = SamplingParameters(**{"max_tokens": count, **sampling})
    sequence = Sequence("r", tokens, parameters, random_key=parameters.seed or 0)
    for _ in range(count):
        logits = weight.reference_logits([*tokens, *sequence.output])[-1]
        sequence.append(sampling_reference.choose(logits.tolist(), sequence, frozenset()))
    return sequence.output


def test_seeded_tokens_are_those_of_the_plain_sampler_over_dense_attention(rig: Rig) -> None:
    weight = rig(2, max_range_tokens=5)
    for number, (name, sampling) in enumerate(SEEDED.items()):
        weight.submit(name, prompt(6 + number, number), **sampling)
    outputs = weight.run_all(*SEEDED)
    for number, (output, sampling) in enumerate(zip(outputs, SEEDED.values(), strict=True)):
        assert output == expected(weight, prompt(6 + number, number), 12, **sampling)


def test_seeded_tokens_do_not_change_by_company_nodes_or_restarts(rig: Rig) -> None:
    alone: dict[str, list[int]] = {}
    for name, sampling in SEEDED.items():
        weight = rig(1)
        weight.submit(name, prompt(8), max_tokens=20, **sampling)
        alone[name] = weight.run_all(name)[0]
    crowded = rig(3, max_range_tokens=3)
    full = rig(2, num_pages=14)  # too few: sequences give way and are recomputed
    for weight in (crowded, full):
        for name, sampling in SEEDED.items():
            weight.submit(name, prompt(8), max_tokens=20, **sampling)
    assert dict(zip(SEEDED, crowded.run_all(*SEEDED), strict=True)) == alone
    crowded_losing = rig(3, max_range_tokens=3)
    for name, sampling in SEEDED.items():
        crowded_losing.submit(name, prompt(8), max_tokens=20, **sampling)
    crowded_losing.turn_until(lambda: len(crowded_losing.recorder.tokens["filters"]) >= 6)
    crowded_losing.adopt("a0", "a1")  # a2 is gone, its ranges are recomputed elsewhere
    assert dict(zip(SEEDED, crowded_losing.run_all(*SEEDED), strict=True)) == alone
    assert crowded_losing.recorder.of(LinkLost)
    assert dict(zip(SEEDED, full.run_all(*SEEDED), strict=True)) == alone
    assert full.engine._reporter._num_restarts > 0


def test_a_run_goes_on_where_another_one_ended(rig: Rig) -> None:
    settings: dict[str, dict[str, Any]] = {
        **SEEDED,
        "repetition": {"temperature": 0.0, "repetition_penalty": 1.3, "min_tokens": 9},
        "unseeded": {"temperature": 1.0, "frequency_penalty": 0.5},
    }
    whole = rig(1)
    for name, sampling in settings.items():
        whole.submit(name, prompt(8), max_tokens=16, **sampling)
    tokens = dict(zip(settings, whole.run_all(*settings), strict=True))
    first = {name: whole.recorder.outputs_of(name)[0] for name in settings}
    told = {name for name, output in first.items() if output.random_key is not None}
    assert told == {"unseeded"}
    for num_told in (1, 7, 15):
        other = rig(2, max_range_tokens=5)
        other.submit("another", prompt(3), temperature=1.0)
        for name, sampling in settings.items():
            resumption = Resumption(tuple(tokens[name][:num_told]), first[name].random_key)
            other.submit(name, prompt(8), max_tokens=16, resumption=resumption, **sampling)
        assert other.run_all(*settings) == [tokens[name][num_told:] for name in settings]
        assert {other.recorder.finished[name].finish_reason for name in settings} == {"length"}


def test_min_tokens_and_stop_tokens(rig: Rig) -> None:
    greedy = rig(1)
    greedy.submit("free", prompt(5), max_tokens=12)
    [free] = greedy.run_all("free")
    weight = rig(1, eos_token_ids=frozenset({free[1]}))
    weight.submit("eos", prompt(5))
    weight.submit("more", prompt(5), min_tokens=4)
    weight.submit("ignoring", prompt(5), ignore_eos=True)
    weight.submit("stopping", prompt(5), ignore_eos=True, stop_token_ids=(free[2],))
    eos, more, ignoring, stopping = weight.run_all("eos", "more", "ignoring", "stopping")
    assert (eos, ignoring, stopping) == (free[:1], free, free[:2])
    assert weight.recorder.finished["stopping"].stop_token_id == free[2]
    assert len(more) >= 4
    assert free[1] not in more[:4]


@pytest.mark.parametrize("max_rows", [4, 16])
def test_log_probabilities_of_output_and_prompt(rig: Rig, max_rows: int) -> None:
    weight = rig(2, max_rows=max_rows, max_range_tokens=5, num_pages=20)
    tokens = prompt(23)
    sampling: dict[str, Any] = {
        "temperature": 1.0,
        "seed": 9,
        "presence_penalty": 2.0,
        "logit_bias": ((5, 3.0),),
    }
    weight.submit("told", tokens, logprobs=3, prompt_logprobs=2, **sampling)
    weight.submit("silent", tokens, **sampling)
    weight.submit("also", prompt(30, 1), max_tokens=30)  # drives the pool full
    told, silent, _ = weight.run_all("told", "silent", "also")
    assert told == silent
    assert not weight.recorder.logprobs["silent"]
    raw = weight.reference_logits([*tokens, *told]).log_softmax(-1)
    prompt_part, output_part = weight.recorder.prompt_logprobs["told"], weight.recorder.logprobs["told"]
    assert (len(prompt_part), len(output_part)) == (len(tokens) - 1, len(told))
    for position, (token, found) in enumerate(
        zip([*tokens[1:], *told], [*prompt_part, *output_part], strict=True)
    ):
        assert found.logprob == pytest.approx(float(raw[position, token]), abs=1e-4)
        best = raw[position].topk(3 if position >= len(prompt_part) else 2)
        assert [value for _, value in found.top] == pytest.approx(best.values.tolist(), abs=1e-4)
        assert [number for number, _ in found.top] == best.indices.tolist()


# --- grammars ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def toolkit() -> GrammarToolkit:
    return byte_toolkit()


def text_of(tokens: list[int]) -> str:
    return bytes(tokens).decode()


def test_texts_follow_their_grammars_also_when_recomputed(rig: Rig, toolkit: GrammarToolkit) -> None:
    grammars = {
        "date": (GrammarKind.REGEX, r"\d{4}-\d{2}-\d{2}"),
        "word": (GrammarKind.CHOICE, '["yes \\"sir\\"", "no"]'),
        "rules": (GrammarKind.EBNF, 'root ::= "<" [a-c]{9} ">"'),
    }
    outputs = []
    for num_pages in (200, 12):
        weight = rig(2, num_pages=num_pages, eos_token_ids=frozenset({EOS}))
        for number, (name, (kind, text)) in enumerate(grammars.items()):
            weight.submit(
                name,
                prompt(10, number),
                matcher=matcher_of(toolkit, kind, text),
                temperature=1.0,
                seed=number,
                max_tokens=40,
                min_tokens=20,  # the grammar ends the text all the same
                ignore_eos=True,
            )
        weight.submit("free", prompt(9), max_tokens=20, ignore_eos=True)
        outputs.append([text_of(tokens) for tokens in weight.run_all(*grammars)])
        assert weight.recorder.finished["date"].finish_reason == "stop"
    assert outputs[0] == outputs[1]
    date, word, rules = outputs[0]
    assert len(date) == 10
    assert date[4] == date[7] == "-"
    assert word in {'yes "sir"', "no"}
    assert (rules[0], rules[-1], len(rules)) == ("<", ">", 11)


def test_a_text_goes_on_in_its_grammar_where_another_run_ended(rig: Rig, toolkit: GrammarToolkit) -> None:
    sampling: dict[str, Any] = {"temperature": 1.0, "max_tokens": 40, "ignore_eos": True}
    grammar = (GrammarKind.REGEX, r"\d{4}-\d{2}-\d{2}")
    whole = rig(1, eos_token_ids=frozenset({EOS}))
    whole.submit("date", prompt(10), matcher=matcher_of(toolkit, *grammar), **sampling)
    [tokens] = whole.run_all("date")
    key = whole.recorder.outputs_of("date")[0].random_key
    for num_told in (1, 5, 10):
        other = rig(1, eos_token_ids=frozenset({EOS}))
        matcher = matcher_of(toolkit, *grammar)
        assert all(map(matcher.accept, tokens[:num_told]))
        resumption = Resumption(tuple(tokens[:num_told]), key)
        other.submit("date", prompt(10), matcher=matcher, resumption=resumption, **sampling)
        assert other.run_all("date") == [tokens[num_told:]]
        assert other.recorder.finished["date"].finish_reason == "stop"


def test_a_grammar_that_takes_too_long_ends_its_own_request_alone(rig: Rig, toolkit: GrammarToolkit) -> None:
    class SlowClock:
        time_s = 0.0

        def now(self) -> float:
            self.time_s += 0.4
            return self.time_s

    weight = rig(1, eos_token_ids=frozenset({EOS}))
    slow = matcher_of(toolkit, GrammarKind.REGEX, "a{100}", SlowClock())
    weight.submit("slow", prompt(5), matcher=slow, max_tokens=90)
    weight.submit("free", prompt(5), max_tokens=9, ignore_eos=True)
    weight.run_all("slow", "free")
    finished = weight.recorder.finished["slow"]
    assert "too long" in finished.error
    assert finished.invalid
    assert len(weight.recorder.tokens["free"]) == 9


def test_a_token_that_the_grammar_does_not_know_ends_the_request(toolkit: GrammarToolkit) -> None:
    matcher = matcher_of(toolkit, GrammarKind.REGEX, "ab")
    words = matcher.allowed_words()
    assert [number for number in range(256) if words[number // 32] >> (number % 32) & 1] == [ord("a")]
    assert matcher.allows_only({ord("a"), 5})
    assert not matcher.allows_only({5, 31, 63})
    assert matcher.accept(ord("a"))
    assert not matcher.accept(ord("x"))
    assert matcher.failure
    assert torch.from_numpy(matcher.allowed_words()).eq(-1).all()
