"""Workloads as they are drawn, made to fit, and put into prompts."""

from __future__ import annotations

import itertools
from array import array
from typing import Any

import numpy as np
import pytest

from kernelflume.cli.bench.answer import OK, Answer
from kernelflume.cli.bench.dialogue import Api, Dialogue
from kernelflume.cli.bench.draws import Draws
from kernelflume.cli.bench.fitting import Fitting, fit
from kernelflume.cli.bench.generated import SessionShape, generate_sessions
from kernelflume.cli.bench.tokens import TokenSource
from kernelflume.cli.bench.workload import ExtendingPrompt, HashedPrompt, Session, Turn, num_turns
from kernelflume.core.errors import ConfigurationError

SOURCE = TokenSource(5, 100, 200)


def hashed(
    runs: tuple[tuple[int, int], ...], num_tokens: int, *, block: float = 8, tail: str = "t"
) -> HashedPrompt:
    return HashedPrompt("n", runs, block, num_tokens, tail)


def single(num_tokens: int, num_output: int = 4, **changes: Any) -> Session:
    return Session("s", (Turn("", hashed((), num_tokens), num_output, **changes),), arrival_s=6.0)


def shape(**changes: Any) -> SessionShape:
    base: dict[str, Any] = {
        "turns": Draws.parse("2-6"),
        "system_tokens": 10,
        "first_tokens": Draws.parse("30~0.5"),
        "turn_tokens": Draws.parse("8-20"),
        "output_tokens": Draws.parse("5"),
        "think_s": Draws.parse("2~1"),
    }
    return SessionShape(**(base | changes))


def test_equal_hashes_are_equal_tokens_and_others_are_not() -> None:
    first = SOURCE.prompt_ids(hashed(((3, 2),), 20, tail="a"))
    second = SOURCE.prompt_ids(hashed(((3, 1), (9, 1)), 20, tail="b"))
    assert len(first) == len(second) == 20
    assert first[:8].tolist() == second[:8].tolist()
    assert first[8:16].tolist() != second[8:16].tolist()
    assert first[16:].tolist() != second[16:].tolist()  # past the blocks, nothing is shared
    assert first.min() >= 100
    assert first.max() < 200
    elsewhere = SOURCE.prompt_ids(HashedPrompt("other", ((3, 2),), 8, 16, "a"))
    assert elsewhere.tolist() != first[:16].tolist()
    assert TokenSource(6, 100, 200).prompt_ids(hashed(((3, 2),), 16)).tolist() != first[:16].tolist()


@pytest.mark.parametrize("scale", [1.0, 3.0, 7.0, 100.0])
def test_prefixes_stay_equal_where_blocks_are_scaled_to_parts_of_tokens(scale: float) -> None:
    block = 64 / scale
    shared = int(5 * block)  # five blocks of both
    first = SOURCE.prompt_ids(hashed(((0, 7),), int(7 * block), block=block))
    second = SOURCE.prompt_ids(hashed(((0, 5), (50, 4)), int(9 * block), block=block))
    assert first[:shared].tolist() == second[:shared].tolist()


def test_draws_in_three_forms() -> None:
    generator = np.random.default_rng(1)
    assert Draws.parse("7.5").draw(generator) == 7.5
    uniform = [Draws.parse("3-5").draw(generator) for _ in range(500)]
    assert 3 <= min(uniform) < 3.2
    assert 4.8 < max(uniform) <= 5
    lognormal = [Draws.parse("80~0.5").draw(generator) for _ in range(2000)]
    assert np.median(lognormal) == pytest.approx(80, rel=0.1)
    assert np.std(np.log(lognormal)) == pytest.approx(0.5, rel=0.1)
    for text in ("", "x", "5-3", "0~1", "3~9", "nan", "1e9", "-3"):
        with pytest.raises(ValueError, match=r"\S"):
            Draws.parse(text)


def test_generated_sessions_follow_from_the_seed() -> None:
    def take(seed: int, count: int) -> list[Session]:
        return list(itertools.islice(generate_sessions(shape(), seed), count))

    assert take(3, 5)[:2] == take(3, 2)
    assert take(3, 2) != take(4, 2)
    for index, session in enumerate(take(3, 5)):
        assert 2 <= len(session.turns) <= 6
        assert session.turns[0].prompt == ExtendingPrompt(session.turns[0].prompt.num_new, 10)  # type: ignore[union-attr]
        assert session.turns[0].hit_tokens == (10 if index else 0)
        assert session.turns[0].think_s == 0


def test_lengths_and_times_are_divided() -> None:
    turn = Turn("c", hashed(((0, 4),), 30), 40, offset_s=9.0, think_s=60.0, hit_tokens=16)
    fitting = Fitting(num_requests=9, length_scale=4, output_scale=8, time_scale=3, max_think_s=5)
    (session,) = fit([Session("c", (turn,), arrival_s=6.0)], fitting).sessions
    assert session.arrival_s == 2.0
    (scaled,) = session.turns
    assert scaled == Turn("c", hashed(((0, 4),), 8, block=2), 5, offset_s=3.0, think_s=5.0, hit_tokens=4)


def test_as_many_requests_as_asked_for_and_no_more_of_a_source_without_end() -> None:
    fitted = fit(generate_sessions(shape(), 0), Fitting(num_requests=23))
    assert num_turns(fitted.sessions) == 23
    short = fit(generate_sessions(shape(), 0), Fitting(num_requests=23, max_turns=1))
    assert [len(session.turns) for session in short.sessions] == [1] * 23


def test_a_single_request_is_cut_to_the_longest_context() -> None:
    fitted = fit([single(90), single(10), single(5, 900)], Fitting(num_requests=9, max_model_len=64))
    found = [(turn.prompt.num_tokens, turn.num_output) for each in fitted.sessions for turn in each.turns]  # type: ignore[union-attr]
    assert found == [(60, 4), (10, 4), (5, 32)]
    assert (fitted.num_cut, fitted.num_dropped) == (2, 0)


def test_a_conversation_ends_with_the_last_turn_that_fits() -> None:
    turns = tuple(Turn("c", ExtendingPrompt(10), 5) for _ in range(6))
    fitted = fit([Session("c", turns)], Fitting(num_requests=99, max_model_len=50))
    assert num_turns(fitted.sessions) == 3  # 15, 30, 45 tokens
    assert fitted.num_dropped == 3
    agent = Turn("c/a", hashed(((90, 1),), 8), 1)
    grown = (Turn("c", hashed(((0, 9),), 70), 5), Turn("c", hashed(((0, 1),), 8), 5), agent)
    fitted = fit([Session("c", grown)], Fitting(num_requests=99, max_model_len=50))
    # Past its context a conversation is over, even for a turn that would fit; its sub-agent is another one.
    assert [turn.conversation for turn in fitted.sessions[0].turns] == ["c/a"]


def test_a_workload_of_which_nothing_fits_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="raise --length-scale"):
        fit(generate_sessions(shape(), 0), Fitting(num_requests=5, max_model_len=4))
    with pytest.raises(ConfigurationError, match="no request"):
        fit([], Fitting(num_requests=5))


def answer(token_ids: list[int], *, num_prompt: int | None = None, text: str = "") -> Answer:
    return Answer(
        status=OK,
        token_ids=array("q", token_ids),
        num_prompt=num_prompt,
        num_counted_output=3,
        pieces=[text],
    )


FIRST = Turn("c", ExtendingPrompt(4, 6), 3, hit_tokens=6)
SECOND = Turn("c", ExtendingPrompt(5), 3)


def test_a_prompt_of_ids_extends_the_one_before_and_its_answer() -> None:
    dialogue = Dialogue("c", SOURCE, Api.COMPLETIONS)
    first = dialogue.prompt(FIRST)
    assert (first.num_tokens, first.hit_tokens) == (10, 6)
    dialogue.answered(FIRST, answer([7, 8, 9]))
    second = dialogue.prompt(SECOND)
    assert second.fields["prompt"][:13] == [*first.fields["prompt"], 7, 8, 9]
    assert len(second.fields["prompt"]) == second.num_tokens == 18
    assert second.hit_tokens == 12  # nobody has computed the last answered token
    other = Dialogue("d", SOURCE, Api.COMPLETIONS).prompt(FIRST)
    assert other.fields["prompt"][:6] == first.fields["prompt"][:6]  # what all sessions share
    assert other.fields["prompt"][6:] != first.fields["prompt"][6:]


def test_other_tokens_stand_for_an_answer_whose_ids_are_not_told() -> None:
    dialogue = Dialogue("c", SOURCE, Api.COMPLETIONS)
    dialogue.prompt(FIRST)
    dialogue.answered(FIRST, answer([]))
    second = dialogue.prompt(SECOND)
    assert len(second.fields["prompt"]) == 18
    assert second.hit_tokens == 10  # only the prompt before can be found


def test_a_chat_goes_on_with_the_answer() -> None:
    dialogue = Dialogue("c", SOURCE, Api.CHAT)
    first = dialogue.prompt(FIRST).fields["messages"]
    assert [message["role"] for message in first] == ["system", "user"]
    assert [len(message["content"].split()) for message in first] == [6, 4]
    dialogue.answered(FIRST, answer([], num_prompt=31, text="well then"))
    second = dialogue.prompt(SECOND)
    roles = [message["role"] for message in second.fields["messages"]]
    assert roles == ["system", "user", "assistant", "user"]
    assert second.fields["messages"][2]["content"] == "well then"
    assert second.hit_tokens == 33  # the server's own count, template included


def test_told_prompts_have_no_history() -> None:
    turn = Turn("c", hashed(((0, 2),), 12), 3, hit_tokens=8)
    for api, field in ((Api.COMPLETIONS, "prompt"), (Api.CHAT, "messages")):
        dialogue = Dialogue("c", SOURCE, api)
        first = dialogue.prompt(turn)
        dialogue.answered(turn, answer([1, 2, 3]))
        assert dialogue.prompt(turn).fields == first.fields
        assert first.fields[field]
        assert (first.num_tokens, first.hit_tokens) == (12, 8)
