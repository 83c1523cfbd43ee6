"""The real small model: its converted folder, its tokenizer, and greedy tokens equal to transformers'."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.decoding import DenseSequence, greedy
from tests.gguf_files import TEXTS
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from kernelflume.checkpoint.source import resolve
from kernelflume.wnode.model.decoder import Decoder, load_decoder

if TYPE_CHECKING:
    from kernelflume.checkpoint.source import Checkpoint

NUM_TOKENS = 48
LONG_TEXT = "A river runs from the hills to the sea, and every town on its way gives it another name. " * 20
CHAT = "Write two sentences about the sea."
PROMPTS = {
    "short": "Once upon a time",
    "code": "def fibonacci(n):\n    ",
    "unicode": "Les élèves ont dit : « ça va très bien » 日本語 👩‍👩‍👧",
    "long": LONG_TEXT,
}


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return resolve("smollm2")


@pytest.fixture(scope="module")
def decoder(checkpoint: Checkpoint) -> Decoder:
    return load_decoder(checkpoint, dtype=torch.float32, device="cpu")


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Checkpoint) -> Any:
    return AutoTokenizer.from_pretrained(checkpoint.path)


@pytest.fixture(scope="module")
def oracle(checkpoint: Checkpoint) -> Any:
    return AutoModelForCausalLM.from_pretrained(checkpoint.path, dtype=torch.float32).eval()


@pytest.fixture(params=[*PROMPTS, "chat"])
def prompt(request: pytest.FixtureRequest, tokenizer: Any) -> list[int]:
    if request.param == "chat":
        message = [{"role": "user", "content": CHAT}]
        return list(tokenizer.apply_chat_template(message, add_generation_prompt=True)["input_ids"])
    return list(tokenizer(PROMPTS[request.param])["input_ids"])


@torch.inference_mode()
def test_greedy_tokens_and_logits_equal_those_of_transformers(
    decoder: Decoder, oracle: Any, prompt: list[int]
) -> None:
    found = greedy(decoder, prompt, NUM_TOKENS)

    # One pass over prompt and answer says at every position what transformers would have taken there, which
    # by induction is what its own greedy loop gives, at a fraction of the time.
    theirs = oracle(torch.tensor([prompt + found])).logits[0]
    expected = theirs[len(prompt) - 1 : -1].argmax(-1).tolist()

    assert found == expected
    ours = DenseSequence(decoder).extend(prompt + found)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-3)


def test_configuration_is_that_of_the_model(checkpoint: Checkpoint) -> None:
    config = checkpoint.config

    assert checkpoint.model_id == "smollm2"
    assert (config.num_layers, config.num_query_heads, config.num_kv_heads, config.head_dim) == (30, 9, 3, 64)
    assert (config.vocab_size, config.max_position_embeddings) == (49152, 8192)
    assert (config.bos_token_id, config.eos_token_ids) == (1, (2,))
    assert config.rms_norm_eps == 1e-5
    assert config.tie_word_embeddings


def test_tokenizer_cuts_digits_and_keeps_control_tokens(checkpoint: Checkpoint) -> None:
    tokenizer = Tokenizer.from_file(str(checkpoint.path / "tokenizer.json"))

    assert tokenizer.encode("<|im_start|>user\n2026<|im_end|>").tokens == [
        *("<|im_start|>", "user", "Ċ", "2", "0", "2", "6", "<|im_end|>")
    ]
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_chat_template_is_in_the_folder(tokenizer: Any) -> None:
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )

    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert text.startswith("<|im_start|>system\n")
