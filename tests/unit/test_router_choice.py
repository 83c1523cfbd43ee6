from __future__ import annotations

from kernelflume.core.sampling import FinishReason
from kernelflume.router.choice import ChoiceText, Delta
from kernelflume.router.detokenizer import BytesDetokenizer
from kernelflume.router.generation import Batch

TABLE = [bytes([number]) for number in range(256)]
EOS = 256  # past the table: it has no text


def ids(text: str) -> list[int]:
    return list(text.encode())


def batch(text: str = "", reason: FinishReason | None = None, stop_token_id: int | None = None) -> Batch:
    return Batch(ids(text), reason, stop_token_id)


def test_tokens_become_text_and_eos_counts_as_a_token() -> None:
    choice = ChoiceText(BytesDetokenizer(TABLE))
    assert choice.add(batch("ab")) == Delta("ab", ids("ab"))
    assert choice.add(batch("c", FinishReason.STOP, EOS)) == Delta("c", [*ids("c"), EOS], FinishReason.STOP)
    assert choice.num_tokens == 4


def test_a_stop_string_in_one_batch_drops_the_tokens_after_it() -> None:
    choice = ChoiceText(BytesDetokenizer(TABLE), stops=["XY"])
    delta = choice.add(batch("aXYbc", FinishReason.LENGTH))
    assert delta == Delta("a", ids("aXY"), FinishReason.STOP, "XY")
    assert choice.num_tokens == 3


def test_text_held_back_is_shown_at_the_end() -> None:
    choice = ChoiceText(BytesDetokenizer(TABLE), stops=["XY"])
    assert choice.add(batch("aX")).text == "a"
    assert choice.add(Batch(list("é".encode()[:1]), FinishReason.LENGTH, None)).text == "X\ufffd"


def test_min_tokens_protects_from_stop_strings() -> None:
    choice = ChoiceText(BytesDetokenizer(TABLE), stops=["a"], min_tokens=2)
    assert choice.add(batch("aaba")) == Delta("aab", ids("aaba"), FinishReason.STOP, "a")


def test_a_stop_token_of_the_requests_own_is_the_reason_and_can_be_shown() -> None:
    for include, shown in ((False, "a"), (True, "a!")):
        choice = ChoiceText(BytesDetokenizer(TABLE), stop_token_ids=[ord("!")], include_stop=include)
        assert choice.add(batch("a", FinishReason.STOP, ord("!"))) == Delta(
            shown, ids("a!"), FinishReason.STOP, ord("!")
        )
