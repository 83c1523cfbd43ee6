"""Text that comes token by token equals decoding all ids at once, and is whole characters at every moment."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.byte_fallback import byte_fallback_tokenizer
from tests.router_parts import byte_level_tokenizer
from tokenizers import Tokenizer, decoders, normalizers

from kernelflume.router.detokenizer import BytesDetokenizer, WindowDetokenizer
from kernelflume.router.tokenizer import Tokenizer as RouterTokenizer
from kernelflume.router.workers import Workers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelflume.router.detokenizer import Detokenizer


def llama_2_tokenizer() -> Tokenizer:
    """Return a tokenizer that puts a space before each text, and takes it away again."""
    tokenizer = byte_fallback_tokenizer(["<s>", "</s>"])
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def byte_level_with_added_tokens() -> Tokenizer:
    tokenizer = byte_level_tokenizer()
    tokenizer.add_tokens(["<think>", "世界 plain"])
    return tokenizer


WORKERS = Workers(ThreadPoolExecutor(1), timeout_s=60.0)
TOKENIZERS = {"byte level": byte_level_with_added_tokens(), "llama 2": llama_2_tokenizer()}
WRAPPED = {name: RouterTokenizer(tokenizer, workers=WORKERS) for name, tokenizer in TOKENIZERS.items()}
KINDS = {"byte level": BytesDetokenizer, "llama 2": WindowDetokenizer}


def feed_all(detokenizer: Detokenizer, token_ids: Sequence[int], step: int) -> list[str]:
    pieces = [detokenizer.feed(token_ids[at : at + step]) for at in range(0, len(token_ids), step)]
    return [*pieces, detokenizer.flush()]


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data(), skip=st.booleans(), step=st.integers(1, 3))
def test_any_ids_decode_as_all_at_once(name: str, data: st.DataObject, skip: bool, step: int) -> None:
    tokenizer = TOKENIZERS[name]
    # Some ids past the end: a model's vocabulary is often padded.
    top = tokenizer.get_vocab_size(with_added_tokens=True) + 3
    token_ids = data.draw(st.lists(st.integers(0, top), max_size=40))
    detokenizer = WRAPPED[name].new_detokenizer(skip_special_tokens=skip)
    assert isinstance(detokenizer, KINDS[name])
    assert "".join(feed_all(detokenizer, token_ids, step)) == tokenizer.decode(
        token_ids, skip_special_tokens=skip
    )


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=st.text(max_size=40) | st.sampled_from(["日本語 😀👩‍👩‍👧 é", "  a  b ", "Hello a", "👩🏽‍💻"]))
def test_any_text_comes_in_whole_characters(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    token_ids = tokenizer.encode(text, add_special_tokens=False).ids
    expected = tokenizer.decode(token_ids, skip_special_tokens=True)
    pieces = feed_all(WRAPPED[name].new_detokenizer(skip_special_tokens=True), token_ids, 1)
    assert "".join(pieces) == expected
    if "\ufffd" not in expected:
        assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_what_is_held_back_is_bounded(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    detokenizer = WRAPPED[name].new_detokenizer(skip_special_tokens=True)
    broken = next(number for token, number in tokenizer.get_vocab().items() if token in {"\ufffd", "Ģ"})
    shown = "".join(detokenizer.feed([broken]) for _ in range(1000))
    assert len(shown) >= 996
