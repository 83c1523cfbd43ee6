"""When a weight node runs its decode steps as captured graphs, and when it posts them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from tests.anode import with_dtypes

from kernelflume.core.errors import ConfigurationError
from kernelflume.core.geometry import FP8
from kernelflume.wnode.gpu import opener
from kernelflume.wnode.gpu.opener import make_graph_runner


def made(
    data_path: str, device: str, dtype: str = "bfloat16", kv_dtype: str | None = None, head_dim: int = 16
) -> object:
    parts = {name: cast("Any", None) for name in ("transport", "links", "clock")}
    settings = SimpleNamespace(
        data_path=data_path, microbatches="auto", max_num_seqs=4, query_first="local", exchange_timeout_s=1.0
    )
    return make_graph_runner(
        decoder=cast("Any", SimpleNamespace(device=torch.device(device))),
        geometry=replace(with_dtypes(dtype, kv_dtype), head_dim=head_dim),
        settings=cast("Any", settings),
        eos_token_ids=frozenset(),
        **parts,
    )


@pytest.mark.parametrize(("data_path", "device"), [("posted", "cuda:0"), ("posted", "cpu"), ("auto", "cpu")])
def test_steps_are_posted_where_that_is_asked_for_or_there_is_no_gpu(data_path: str, device: str) -> None:
    assert made(data_path, device) is None


@pytest.mark.parametrize("path", ["device", "host"])
def test_graphs_on_a_cpu_are_refused_by_name(path: str) -> None:
    with pytest.raises(ConfigurationError, match=f"data_path: the {path} path needs device=cuda"):
        made(path, "cpu")


def test_float32_has_no_host_path() -> None:
    with pytest.raises(ConfigurationError, match=r"on the host path FlashInfer .* not in float32"):
        made("host", "cuda:0", "float32")


def test_float32_has_no_device_path(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(
        ConfigurationError, match=r"data_path: .* FlashInfer computes in bfloat16 or float16, not in float32"
    ):
        made("device", "cuda:0", "float32")
    assert made("auto", "cuda:0", "float32") is None
    assert "decode steps are posted" in caplog.text


def test_keys_and_values_that_flashinfer_does_not_know_have_no_device_path() -> None:
    with pytest.raises(ConfigurationError, match=r"data_path: .* or float8_e4m3fn, not in bfloat16"):
        made("device", "cuda:0", "float16", "bfloat16")


def test_fp8_needs_a_gpu_that_rounds_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with pytest.raises(ConfigurationError, match=r"data_path: .* float8_e4m3fn on GPUs of .* 8\.9 or more"):
        made("device", "cuda:0", "bfloat16", FP8, 128)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(opener, "missing_packages", lambda _: ["libucx-cu13"])
    with pytest.raises(ConfigurationError, match="needs libucx-cu13"):
        made("device", "cuda:0", "bfloat16", FP8, 128)
