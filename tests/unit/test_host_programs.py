"""What the graphs of the host path consist of, with kernels and stream operations that are recorded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import torch
from tests.anode import with_dtypes

from kernelflume.anode.gpu import host_program
from kernelflume.anode.gpu.host_program import HostLaneProgram
from kernelflume.cuda.exchange import RowTables
from kernelflume.cuda.flags import FlagKind, StepFlags
from kernelflume.transport.lanes import LaneLayout
from kernelflume.wnode.gpu import host_stage
from kernelflume.wnode.gpu.device_stage import QueryFirst
from kernelflume.wnode.gpu.host_stage import HostStage
from kernelflume.wnode.gpu.lane import LaneBuffers

CPU = torch.device("cpu")
GEOMETRY = with_dtypes("bfloat16")
LAYERS = GEOMETRY.num_layers
LAYOUT = LaneLayout(GEOMETRY, 8)
STREAM = 77


@dataclass
class Recorder:
    """Stands for kernels, memops and FlashInfer: writes down each call in order."""

    flags: StepFlags = field(default_factory=lambda: StepFlags(LAYERS, pinned=False))
    calls: list[tuple[Any, ...]] = field(default_factory=list)

    def flag_at(self, address: int) -> tuple[FlagKind, int]:
        [found] = [
            (kind, layer)
            for kind in FlagKind
            for layer in range(LAYERS)
            if self.flags.address(kind, layer) == address
        ]
        return found

    def set(self, address: int, stream: int) -> None:
        assert stream == STREAM
        self.calls.append(("set", *self.flag_at(address)))

    def wait(self, address: int, stream: int) -> None:
        assert stream == STREAM
        self.calls.append(("wait", *self.flag_at(address)))

    def pack_queries(self, routes: int, queries: int, **_: int) -> None:
        assert routes
        assert queries
        self.calls.append(("pack queries",))

    def pack_keys_values(self, *_: int, first_layer: int, num_layers: int, **__: int) -> None:
        self.calls.append(("pack keys and values", first_layer, num_layers))

    def merge_partials(self, *_: int, own: bool, layer: int, status: int, **__: int) -> None:
        assert status == 0
        self.calls.append(("merge", layer, own))

    def file_append(self, *_: int, first_layer: int, num_layers: int, max_rows: int, **__: int) -> None:
        self.calls.append(("file", first_layer, num_layers, max_rows))

    num_rows = 4

    def run(self, layer: int, queries: torch.Tensor, out: torch.Tensor, lse: torch.Tensor) -> None:
        assert queries.shape == out.shape
        self.calls.append(("attend", layer))
        out.fill_(3)
        lse.fill_(1)


def staged_step(mode: QueryFirst, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What the weight node's graph does in two layers and at its end."""
    monkeypatch.setattr(host_stage, "stream_handle", lambda: STREAM)
    recorder = Recorder()
    lane = LaneBuffers.allocate(GEOMETRY, LAYOUT.max_rows, CPU)
    stage = HostStage.create(cast("Any", recorder), cast("Any", recorder), lane, recorder.flags, mode=mode)
    assert stage.routes.numel() == RowTables(LAYOUT.max_rows).num_bytes
    assert stage.query_first == (mode is not QueryFirst.OFF)
    for layer in range(2):
        stage.dispatch_query(layer, 4, beside=False)
        stage.dispatch_keys_values(layer, 4)
        stage.collect(layer, 4)
    stage.end(4)
    return recorder.calls


def test_a_local_step_waits_before_it_merges_and_stores_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = staged_step(QueryFirst.LOCAL, monkeypatch)
    layers = [
        [
            ("pack queries",),
            ("set", FlagKind.QUERY, layer),
            ("wait", FlagKind.ATTENTION, layer),
            ("merge", layer, True),
        ]
        for layer in range(2)
    ]
    end = [("pack keys and values", 0, LAYERS), ("set", FlagKind.KEYS_VALUES, 0)]
    assert calls == [*layers[0], *layers[1], *end]


@pytest.mark.parametrize("mode", [QueryFirst.OFF, QueryFirst.PAPER])
def test_otherwise_every_layer_stores(mode: QueryFirst, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = staged_step(mode, monkeypatch)
    assert calls == [
        call
        for layer in range(2)
        for call in (
            ("pack queries",),
            ("set", FlagKind.QUERY, layer),
            ("pack keys and values", layer, 1),
            ("set", FlagKind.KEYS_VALUES, layer),
            ("wait", FlagKind.ATTENTION, layer),
            ("merge", layer, False),
        )
    ]


@dataclass
class Lane:
    """The parts of a ``DeviceLane`` that the program uses."""

    layout: LaneLayout = LAYOUT
    queries: torch.Tensor = field(
        default_factory=lambda: torch.zeros(
            LAYOUT.max_rows, GEOMETRY.num_query_heads, GEOMETRY.head_dim, dtype=torch.bfloat16
        )
    )
    state: torch.Tensor = field(default_factory=lambda: torch.zeros(8))
    appends: torch.Tensor = field(default_factory=lambda: torch.zeros(8))
    slots: torch.Tensor = field(default_factory=lambda: torch.zeros(8))


@dataclass
class Pages:
    """The parts of ``DevicePages`` that the program uses."""

    pages: torch.Tensor = field(default_factory=lambda: torch.zeros(8))
    page_tokens: int = 4
    layer_bytes: int = 64


def program(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, *, in_layer: bool
) -> tuple[HostLaneProgram, torch.Tensor]:
    monkeypatch.setattr(host_program, "stream_handle", lambda: STREAM)
    partials = torch.zeros(LAYOUT.graph_partial_bytes(LAYOUT.max_rows), dtype=torch.uint8)
    made = HostLaneProgram(
        kernels=cast("Any", recorder),
        memops=cast("Any", recorder),
        lane=cast("Any", Lane()),
        pages=cast("Any", Pages()),
        partials=partials,
        flags=recorder.flags,
        waits_in_layer=in_layer,
    )
    return made, partials


def test_an_attention_node_answers_where_the_weight_node_expects_it(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    made, partials = program(recorder, monkeypatch, in_layer=False)
    made.attend(1, cast("Any", recorder))
    assert recorder.calls == [
        ("wait", FlagKind.QUERY, 1),
        ("attend", 1),
        ("set", FlagKind.ATTENTION, 1),
    ]
    heads, start = GEOMETRY.num_query_heads, LAYOUT.graph_out_offset
    lse = partials[: 4 * heads * 4].view(torch.float32)
    torch.testing.assert_close(lse, torch.full_like(lse, 0.6931472))  # to base e
    out = partials[start : start + 4 * GEOMETRY.query_row_bytes].view(torch.bfloat16)
    assert (out == 3).all()
    assert not partials[start + 4 * GEOMETRY.query_row_bytes :].any()


def test_what_is_stored_is_filed_behind_its_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    made, _ = program(recorder, monkeypatch, in_layer=False)
    made.file_step(7)
    bucket = LAYOUT.buckets[LAYOUT.bucket_index(7)]
    assert recorder.calls == [("wait", FlagKind.KEYS_VALUES, 0), ("file", 0, LAYERS, bucket)]


def test_keys_of_the_layer_are_filed_before_it_is_attended_to(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    made, _ = program(recorder, monkeypatch, in_layer=True)
    made.attend(2, cast("Any", recorder))
    assert recorder.calls == [
        ("wait", FlagKind.QUERY, 2),
        ("wait", FlagKind.KEYS_VALUES, 2),
        ("file", 2, 1, 0),  # every layer's rows come to the same place
        ("attend", 2),
        ("set", FlagKind.ATTENTION, 2),
    ]
