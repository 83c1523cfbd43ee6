from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE

from kernelflume.checkpoint.vocabulary import load_vocabulary
from kernelflume.core.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path


def test_tokens_come_by_id_with_gaps_and_added_ones(tmp_path: Path) -> None:
    tokenizer = Tokenizer(BPE(vocab={"a": 0, "b": 3}, merges=[]))
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    vocabulary = load_vocabulary(tmp_path)
    by_id = dict(enumerate(vocabulary.tokens))
    assert (by_id[0], by_id[1], by_id[3]) == ("a", "", "b")
    assert "<end>" in vocabulary.tokens
    assert json.loads(vocabulary.description)["model"]["vocab"] == {"a": 0, "b": 3}


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"tokenizer\.json"):
        load_vocabulary(tmp_path)
