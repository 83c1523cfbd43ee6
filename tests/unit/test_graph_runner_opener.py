"""When a weight node runs its decode steps as captured graphs, and when it posts them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from tests.anode import with_dtypes

from kernelflume.core.errors import ConfigurationError
from kernelflume.wnode.gpu.opener import make_graph_runner


def made(data_path: str, device: str, dtype: str = "bfloat16") -> object:
    parts = {name: cast("Any", None) for name in ("transport", "links", "clock")}
    settings = SimpleNamespace(
        data_path=data_path, microbatches="auto", max_num_seqs=4, query_first="local", exchange_timeout_s=1.0
    )
    return make_graph_runner(
        decoder=cast("Any", SimpleNamespace(device=torch.device(device))),
        geometry=with_dtypes(dtype, dtype),
        settings=cast("Any", settings),
        eos_token_ids=frozenset(),
        **parts,
    )


@pytest.mark.parametrize(("data_path", "device"), [("host", "cuda:0"), ("host", "cpu"), ("auto", "cpu")])
def test_steps_are_posted_where_that_is_asked_for_or_there_is_no_gpu(data_path: str, device: str) -> None:
    assert made(data_path, device) is None


def test_the_device_path_on_a_cpu_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="data_path: the device path needs device=cuda"):
        made("device", "cpu")


def test_float32_has_no_device_path(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(
        ConfigurationError, match="compute bfloat16 or float16 on the device path, not float32"
    ):
        made("device", "cuda:0", "float32")
    assert made("auto", "cuda:0", "float32") is None
    assert "decode steps are posted" in caplog.text
