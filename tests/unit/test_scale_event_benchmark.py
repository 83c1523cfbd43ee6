"""The parts of the scale event benchmark that need no stack."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from benchmarks.gpu.model_folder import write_model_folder
from benchmarks.gpu.mps import mps
from benchmarks.gpu.scale_event import windows
from benchmarks.gpu.token_streams import TokenStreams

if TYPE_CHECKING:
    from pathlib import Path


def test_windows_lie_where_every_stream_decodes() -> None:
    steady = [index * 0.01 for index in range(401)]
    # The second stream begins later, and stalls for a quarter of a second in the event.
    stalled = [*(index * 0.01 for index in range(100, 201)), *(2.25 + index * 0.01 for index in range(151))]

    found = windows(TokenStreams([steady, stalled]), 1.9, 2.3, settle_s=0.5)

    assert found["before"]["seconds"] == pytest.approx(0.9)
    assert found["during"]["seconds"] == pytest.approx(0.9)
    assert found["after"]["seconds"] == pytest.approx(3.75 - 2.8)
    assert found["during"]["longest_ms"] == pytest.approx(250)
    assert found["before"]["longest_ms"] == pytest.approx(10)
    assert found["after"]["p99_ms"] == pytest.approx(10)
    assert found["after"]["tokens_s"] == pytest.approx(200, rel=0.03)


def test_a_run_without_an_event_has_no_window_but_the_first() -> None:
    found = windows(TokenStreams([[0.0, 0.1, 0.2, 0.3]]), None, None, settle_s=0.5)

    assert set(found) == {"all", "before"}


def test_the_folder_has_llama_3_1_8b_s_shape_and_no_weights(tmp_path: Path) -> None:
    checkpoint = write_model_folder(tmp_path / "model", "llama-8b")

    assert checkpoint.weights.num_elements == 8_030_261_248
    assert checkpoint.geometry("bfloat16", "bfloat16").token_bytes == 128 * 1024
    assert not list(tmp_path.rglob("*.safetensors"))
    assert write_model_folder(tmp_path / "model", "llama-8b", layers=2).config.num_layers == 2


def test_without_the_program_there_is_no_mps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with mps() as variables:
        assert variables == {}


def test_a_daemon_is_started_and_told_to_quit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program, log = tmp_path / "nvidia-cuda-mps-control", tmp_path / "log"
    program.write_text(f'#!/bin/sh\necho "$CUDA_MPS_PIPE_DIRECTORY $@" >> {log}\n[ "$1" ] || cat >> {log}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    with mps() as variables:
        pipe = variables["CUDA_MPS_PIPE_DIRECTORY"]
        assert log.read_text().split() == [pipe, "-d"]

    assert log.read_text().split()[2:] == [pipe, "quit"]
