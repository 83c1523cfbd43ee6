"""The order in which a step's lanes are enqueued; kernels and attention are made up."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from kernelflume.wnode.gpu import program as program_module
from kernelflume.wnode.gpu.program import StepProgram

if TYPE_CHECKING:
    from kernelflume.wnode.gpu.program import AttentionStage

HIDDEN, VOCAB, MAX_ROWS, NUM_LAYERS = 8, 5, 4, 3


@dataclass
class Stage:
    """Writes down what it is asked for."""

    name: str
    log: list[str]
    query_first: bool = True
    beside: set[bool] = field(default_factory=set)

    def dispatch_query(self, layer: int, num_rows: int, *, beside: bool) -> None:
        self.beside.add(beside)
        self.log.append(f"{self.name} query {layer} x{num_rows}")

    def dispatch_keys_values(self, layer: int, num_rows: int) -> None:
        pass

    def collect(self, layer: int, num_rows: int) -> None:
        self.log.append(f"{self.name} collect {layer} x{num_rows}")

    def end(self, num_rows: int) -> None:
        self.log.append(f"{self.name} end x{num_rows}")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> tuple[StepProgram, list[Stage], list[str]]:
    for name in ("rotate_queries", "rotate_keys"):
        monkeypatch.setattr(program_module, name, lambda *arguments: None)
    monkeypatch.setattr(program_module, "rms_norm", lambda hidden, delta, weight: hidden)
    monkeypatch.setattr(program_module, "gate", lambda values: values)

    def same(values: torch.Tensor) -> torch.Tensor:
        return values

    layer = SimpleNamespace(
        query=same, key_value=same, output=same, gate_up=same, down=same, output_bias=None, down_bias=None,
        input_norm=None, post_norm=None, query_norm=None, key_norm=None,
    )  # fmt: skip
    rope = SimpleNamespace(inverse_frequencies=lambda dim: np.ones(dim // 2, np.float32))
    decoder: Any = SimpleNamespace(
        config=SimpleNamespace(num_layers=NUM_LAYERS, head_dim=4, rope=rope),
        device=torch.device("cpu"),
        dtype=torch.float32,
        embedding=torch.eye(VOCAB, HIDDEN),
        layers=[layer] * NUM_LAYERS,
        final_norm=None,
        head=lambda values: values[:, :VOCAB],
    )
    lanes: list[Any] = [
        SimpleNamespace(
            token_ids=torch.full((MAX_ROWS,), index + 1),
            positions=torch.zeros(MAX_ROWS, dtype=torch.int64),
            query=torch.zeros(MAX_ROWS, 2, 4),
            own_keys_values=torch.zeros(MAX_ROWS),
            keys_values=torch.zeros(NUM_LAYERS, MAX_ROWS),
            attention=torch.zeros(MAX_ROWS, 2, 4),
        )
        for index in range(2)
    ]
    log: list[str] = []
    stages = [Stage(name, log) for name in ("a", "b")]
    taken: list[AttentionStage] = list(stages)
    return StepProgram(decoder, lanes, taken), stages, log


def test_one_microbatch_leaves_the_other_lane_alone_and_sends_its_queries_in_line(
    made: tuple[StepProgram, list[Stage], list[str]],
) -> None:
    program, stages, log = made
    logits = program.enqueue((3, 0))
    assert [tuple(lane.shape) for lane in logits] == [(3, VOCAB)]
    assert all(entry.startswith("a ") and entry.endswith("x3") for entry in log)
    assert (stages[0].beside, stages[1].beside) == ({False}, set())


def test_two_microbatches_take_turns_in_every_layer(
    made: tuple[StepProgram, list[Stage], list[str]],
) -> None:
    program, stages, log = made
    logits = program.enqueue((2, 2))
    assert [tuple(lane.shape) for lane in logits] == [(2, VOCAB)] * 2
    assert log[:6] == [
        "a query 0 x2", "b query 0 x2", "a collect 0 x2", "a query 1 x2", "b collect 0 x2", "b query 1 x2",
    ]  # fmt: skip
    assert log[-4:] == ["a collect 2 x2", "a end x2", "b collect 2 x2", "b end x2"]
    assert stages[0].beside == stages[1].beside == {True}


def test_parts_that_are_timed_apart_wait_for_nothing(
    made: tuple[StepProgram, list[Stage], list[str]],
) -> None:
    program, _, log = made
    program.enqueue_projections(4)
    assert log == ["a query 0 x4", "a query 1 x4", "a query 2 x4", "a end x4"]
    log.clear()
    program.enqueue_ends(4)
    assert log == []
