"""Recordings of runs: what is written is read again, and what cannot be is refused with its place."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.recordings import operation, recording, request

from kernelflume.core.errors import ConfigurationError
from kernelflume.core.recording import REQUESTS, SUMMARY, Recording
from kernelflume.scaler.sim.node_spans import most_at_once, node_spans, prewarms_s, releases_s
from kernelflume.scaler.sim.recordings import read_recording


def written(folder: Path, **changes: Any) -> Path:
    for name, text in recording(**changes).to_files().items():
        (folder / name).write_text(text)
    return folder


def with_summary(folder: Path, **changes: Any) -> Path:
    told = json.loads((folder / SUMMARY).read_text()) | changes
    (folder / SUMMARY).write_text(json.dumps(told))
    return folder


def with_request(folder: Path, **changes: Any) -> Path:
    told = json.loads((folder / REQUESTS).read_text()) | changes
    (folder / REQUESTS).write_text(json.dumps(told) + "\n")
    return folder


def test_a_recording_is_read_as_it_was_written(tmp_path: Path) -> None:
    wanted = recording(operations=(operation(),), requests=(request(), request(3.0)))
    assert Recording.from_files(*wanted.to_files().values()) == wanted
    assert read_recording(written(tmp_path, operations=(operation(),))).operations == (operation(),)


def test_a_recording_that_does_not_tell_had_a_prefix_cache(tmp_path: Path) -> None:
    told = json.loads((written(tmp_path) / SUMMARY).read_text())
    del told["has_prefix_cache"]
    (tmp_path / SUMMARY).write_text(json.dumps(told))
    with pytest.raises(ConfigurationError, match="has_prefix_cache missing"):
        read_recording(tmp_path)
    assert read_recording(with_summary(tmp_path, schema=1)).has_prefix_cache


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"schema": 3}, "schema 3 is not 2, nor one that is read"),
        ({"num_requests": 2}, "1 requests, where recording.json has num_requests 2: a file is cut off"),
        ({"duration_s": -1.0}, "duration_s"),
        ({"duration_s": True}, "duration_s"),
        ({"duration_s": float("nan")}, "duration_s"),
        ({"duration_s": 0.5}, "a request ended after the run"),
        ({"node_capacity_tokens": 0}, "node_capacity_tokens"),
        ({"token_bytes": 1.5}, "token_bytes"),
        ({"page_tokens": "16"}, "page_tokens"),
        ({"initial_nodes": []}, "no attention node"),
        ({"initial_nodes": 7}, "not iterable"),
        ({"operations": [{}]}, "missing"),
        ({"operations": [7]}, "recording.json"),
        ({"operations": None}, "recording.json"),
        ({"profile": {}}, "profile: schema None"),
        ({"has_prefix_cache": 1}, "has_prefix_cache must be true or false"),
        ({"profile": 7}, "profile"),
        ({"surprise": 1}, "surprise: not known"),
    ],
)
def test_a_summary_that_cannot_be_is_refused(tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    folder = with_summary(written(tmp_path), **changes)
    with pytest.raises(ConfigurationError, match=complaint) as refusal:
        read_recording(folder)
    assert str(folder) in str(refusal.value)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"sent_s": -0.1}, "do not follow each other"),
        ({"first_token_s": 1.2}, "do not follow each other"),
        ({"ended_s": 1e99}, "ended_s is no time"),
        ({"sent_s": "0"}, "sent_s is no time"),
        ({"sent_s": False}, "sent_s is no time"),
        ({"prompt_tokens": 0}, "prompt_tokens"),
        ({"output_tokens": 2**60}, "output_tokens"),
        ({"cached_tokens": 11}, "more tokens are cached"),
        ({"surprise": 1}, "surprise: not known"),
    ],
)
def test_a_request_that_cannot_be_is_refused_with_its_line(
    tmp_path: Path, changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"requests.jsonl: line 1: .*{complaint}"):
        read_recording(with_request(written(tmp_path), **changes))


@pytest.mark.parametrize("name", [SUMMARY, REQUESTS])
def test_a_file_that_is_cut_off_or_missing_is_named(tmp_path: Path, name: str) -> None:
    path = written(tmp_path) / name
    whole = path.read_text()
    for length in range(0, len(whole) - 2, 7):
        path.write_text(whole[:length])
        with pytest.raises(ConfigurationError, match="cut off"):
            read_recording(tmp_path)
    path.write_text("[]\n")
    with pytest.raises(ConfigurationError, match=r"not a JSON object"):
        read_recording(tmp_path)
    path.unlink()
    with pytest.raises(ConfigurationError, match=name):
        read_recording(tmp_path)


def test_a_phase_of_no_time_that_can_be_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="a phase lasted"):
        operation(phases=(("launching", -0.1),))


def test_nodes_are_paid_for_from_launch_to_release() -> None:
    down = operation(
        started_s=10.0,
        initial=2,
        target=1,
        node_ids=("a-1",),
        phases=(("draining", 2.0), ("retiring", 0.25), ("releasing", 0.5), ("done", 0.0)),
    )
    run = recording(operations=(operation(), down))
    spans = {span.node_id: (span.from_s, span.until_s) for span in node_spans(run)}
    assert spans == {"a-1": (0.0, 12.75), "a-2": (2.0, 20.0)}
    assert most_at_once(node_spans(run)) == 2
    assert prewarms_s(run) == [0.5]
    assert releases_s(run) == [0.75]


def test_nodes_that_were_given_up_are_paid_for_until_then() -> None:
    given_up = operation(
        result="cancelled", phases=(("launching", 1.0), ("rolling_back", 0.5), ("done", 0.0))
    )
    run = recording(operations=(given_up,))
    assert [span.seconds for span in node_spans(run)] == [20.0, 1.5]
    assert prewarms_s(run) == []


def test_a_drain_that_was_undone_ends_nothing() -> None:
    undone = operation(
        initial=1, target=0, node_ids=("a-1",), result="cancelled", phases=(("draining", 1.0),)
    )
    assert [span.seconds for span in node_spans(recording(operations=(undone,)))] == [20.0]


def test_nodes_that_come_or_go_beyond_the_run_count_within_it() -> None:
    before = operation(started_s=-0.2)
    late = operation(started_s=19.9, node_ids=("a-3",), result="", phases=(("launching", 0.3),))
    seconds = {span.node_id: span.seconds for span in node_spans(recording(operations=(before, late)))}
    assert seconds == {"a-1": 20.0, "a-2": 20.0, "a-3": pytest.approx(0.1)}
