"""Figures of a run: statistics, classes, nodes, events of a stream, and the result's fields."""

from __future__ import annotations

import json
from array import array
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from rich.console import Console

from kernelflume.cli.bench.answer import CANCELLED, OK, STREAM_ERROR, Answer
from kernelflume.cli.bench.artifacts import prepare_folder, write_artifacts
from kernelflume.cli.bench.classes import ClassRule, ClassSource, class_lines, class_source
from kernelflume.cli.bench.comparison import compare, compare_files
from kernelflume.cli.bench.details import Detail
from kernelflume.cli.bench.distribution import percentile, summary_ms
from kernelflume.cli.bench.events import EventParser, apply_event
from kernelflume.cli.bench.load import Measured
from kernelflume.cli.bench.nodes import covered_s, imbalance, node_lines
from kernelflume.cli.bench.outcome import Outcome, Sample
from kernelflume.cli.bench.report import remarks_of, render
from kernelflume.cli.bench.results import RunFacts, result_of
from kernelflume.core.errors import ConfigurationError, UnavailableError
from kernelflume.core.request_class import ClassBounds, RequestClass

if TYPE_CHECKING:
    from pathlib import Path

BY_USAGE = ClassRule(ClassBounds(50, 200), ClassSource.USAGE)


def outcome(**changes: Any) -> Outcome:
    base: dict[str, Any] = {
        "session": "s",
        "turn": 0,
        "status": OK,
        "detail": "",
        "due_s": 0.0,
        "sent_s": 1.0,
    }
    base |= {"ttft_s": 0.5, "e2e_s": 2.5, "num_prompt": 100, "num_output": 5, "num_cached": None}
    return Outcome(**(base | {"hit_tokens": 0, "node": ""} | changes))


def measured(*outcomes: Outcome, **changes: Any) -> Measured:
    gaps = Sample(1000, 0)
    gaps.add([0.1, 0.3])
    base: dict[str, Any] = {"outcomes": list(outcomes), "gaps": gaps, "lags_s": array("d", [0.001] * 100)}
    base |= {"begun_s": 0.0, "duration_s": 10.0, "client_cpu_s": 0.5, "num_skipped": 0, "interrupted": False}
    return Measured(**(base | changes))


def facts(**changes: Any) -> RunFacts:
    base: dict[str, Any] = {
        "date": "20260101-000000",
        "label": "",
        "backend": "openai",
        "base_url": "http://x",
    }
    base |= {"model": "m", "workload": "w", "num_planned": 4, "num_cut": 0, "num_dropped": 0}
    base |= {"request_rate": None, "max_concurrency": None, "warm_tokens": 50, "heavy_tokens": 200}
    return RunFacts(**(base | {"classes_by": None, "settings": {}} | changes))


def test_statistics_are_numpys() -> None:
    values = np.random.default_rng(0).exponential(0.2, 501).tolist()
    figures = summary_ms("ttft", values)
    scaled = 1000 * np.array(values)
    assert figures["mean_ttft_ms"] == pytest.approx(np.mean(scaled))
    assert figures["median_ttft_ms"] == pytest.approx(np.median(scaled))
    assert figures["std_ttft_ms"] == pytest.approx(np.std(scaled))
    for share in (50, 90, 95, 99):
        assert figures[f"p{share}_ttft_ms"] == pytest.approx(np.percentile(scaled, share))
    assert percentile(values, 90) == pytest.approx(np.percentile(values, 90))
    assert set(summary_ms("ttft", [])) == set(figures)
    assert set(summary_ms("ttft", []).values()) == {None}


def test_a_sample_is_whole_up_to_its_bound_and_even_beyond() -> None:
    sample = Sample(1000, 1)
    sample.add(float(value) for value in range(1000))
    assert sample.values.tolist() == list(range(1000))
    sample.add(float(value) for value in range(1000, 20000))
    assert (len(sample.values), sample.num_seen) == (1000, 20000)
    assert np.mean(sample.values) == pytest.approx(10000, rel=0.1)


def test_time_per_token_is_that_of_the_tokens_after_the_first() -> None:
    assert outcome().tpot_s == pytest.approx(0.5)
    assert outcome(num_output=1).tpot_s is None
    assert outcome(ttft_s=None).tpot_s is None


def test_classes_count_new_tokens_not_length() -> None:
    long_but_cached = outcome(num_prompt=9000, num_cached=8960)
    assert BY_USAGE.class_of(long_but_cached) is RequestClass.WARM
    assert BY_USAGE.class_of(outcome(num_prompt=50)) is RequestClass.WARM
    assert BY_USAGE.class_of(outcome(num_prompt=51)) is RequestClass.MEDIUM
    assert BY_USAGE.class_of(outcome(num_prompt=200)) is RequestClass.MEDIUM
    assert BY_USAGE.class_of(outcome(num_prompt=201)) is RequestClass.HEAVY
    by_trace = ClassRule(ClassBounds(50, 200), ClassSource.TRACE)
    assert by_trace.class_of(outcome(num_prompt=9000, num_cached=8960)) is RequestClass.HEAVY
    assert by_trace.class_of(outcome(num_prompt=9000, hit_tokens=8960)) is RequestClass.WARM


def test_classes_come_from_the_server_where_it_tells() -> None:
    assert class_source([outcome(), outcome(num_cached=0)], None) is ClassSource.USAGE
    assert class_source([outcome()], None) is ClassSource.TRACE
    assert class_source([outcome(num_cached=0)], ClassSource.TRACE) is ClassSource.TRACE


def test_lines_of_classes() -> None:
    lines = class_lines(
        [
            outcome(num_prompt=40, ttft_s=1.0, e2e_s=2.0, num_output=3),
            outcome(num_prompt=40, ttft_s=3.0, e2e_s=7.0, num_output=3),
            outcome(num_prompt=40, status="429", ttft_s=None),
            outcome(num_prompt=900, num_cached=100),
        ],
        BY_USAGE,
    )
    assert (lines["ALL"]["ok"], lines["ALL"]["n"]) == (3, 4)
    warm = lines["WARM"]
    assert (warm["ok"], warm["n"], warm["ttft_p50_s"], warm["e2e_p50_s"]) == (2, 3, 2.0, 4.5)
    assert warm["ttft_p90_s"] == pytest.approx(np.percentile([1.0, 3.0], 90))
    assert warm["tpot_p90_s"] == pytest.approx(np.percentile([0.5, 2.0], 90))
    assert lines["MEDIUM"]["ttft_p50_s"] is None
    assert (lines["HEAVY"]["prompt_tokens"], lines["HEAVY"]["cached_tokens"]) == (900, 100)


def test_nodes_hits_and_imbalance() -> None:
    lines = node_lines(
        [
            outcome(node="w-0", sent_s=0.0, e2e_s=4.0, num_cached=60),
            outcome(node="w-0", sent_s=3.0, e2e_s=3.0, num_cached=0),
            outcome(node="w-1", sent_s=5.0, e2e_s=2.0),
            outcome(node="w-1", sent_s=5.0, e2e_s=9.0, status="timeout"),
            outcome(sent_s=5.0, e2e_s=2.0),
        ],
        10.0,
    )
    assert lines["w-0"]["prefix_hit"] == pytest.approx(0.3)
    assert lines["w-0"]["computed_tokens"] == 200 - 60 + 10
    assert lines["w-0"]["utilisation"] == pytest.approx(0.6)  # the overlap counts once
    assert lines["w-1"]["utilisation"] == pytest.approx(0.2)
    assert imbalance(lines, "utilisation") == pytest.approx(3.0)
    assert imbalance({"w-0": lines["w-0"]}, "utilisation") is None


def test_covered_time() -> None:
    assert covered_s([]) == 0
    assert covered_s([(5, 6), (0, 2), (1, 3), (1.5, 2)]) == 4


def test_events_are_cut_wherever_the_bytes_are() -> None:
    stream = b': hello\r\ndata: {"a": 1}\r\n\r\nevent: x\ndata:{"b": 2}\n\ndata: [DONE]\n\n'
    expected = [b'{"a": 1}', b'{"b": 2}', b"[DONE]"]
    for size in (1, 3, 7, len(stream)):
        parser = EventParser()
        pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
        assert [data for piece in pieces for data in parser.feed(piece)] == expected


def test_an_event_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelflume.cli.bench.events.MAX_EVENT_BYTES", 10)
    with pytest.raises(UnavailableError, match="more than 10 bytes"):
        EventParser().feed(b"data: 0123456789")


def told(*events: Any, keep_text: bool = True) -> Answer:
    answer = Answer(sent_s=10.0)
    for second, event in enumerate(events, 11):
        data = event if isinstance(event, bytes) else json.dumps(event).encode()
        apply_event(answer, data, float(second), keep_text=keep_text)
    return answer


def test_an_answer_of_completions() -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
    answer = told(
        {"choices": [{"text": "a", "token_ids": [5]}], "usage": None},
        {"choices": [{"text": "", "token_ids": [6]}]},
        {"choices": [{"text": "bc", "token_ids": [7], "finish_reason": "length"}]},
        {"choices": [], "usage": usage},
        b"[DONE]",
    )
    assert (answer.status, answer.text, answer.token_ids.tolist()) == (OK, "abc", [5, 6, 7])
    assert (answer.num_prompt, answer.num_output, answer.num_cached) == (7, 3, 4)
    assert (answer.ttft_s, answer.e2e_s, answer.gaps_s.tolist()) == (1.0, 3.0, [1.0, 1.0])


def test_a_count_that_no_figure_can_be_made_of_is_none() -> None:
    answer = told({"choices": [], "usage": {"prompt_tokens": 10**400, "completion_tokens": 3}}, b"[DONE]")
    assert (answer.num_prompt, answer.num_counted_output) == (None, 3)


def test_an_answer_of_a_chat_begins_with_content_not_with_the_role() -> None:
    answer = told(
        {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
        {"choices": [{"delta": {"reasoning_content": "hm"}}]},
        {"choices": [{"delta": {"content": "yes"}}]},
        {"choices": [{"delta": {}, "finish_reason": "stop"}]},
        b"[DONE]",
    )
    assert (answer.ttft_s, answer.e2e_s, answer.text) == (2.0, 3.0, "hmyes")
    assert answer.num_cached is None
    assert answer.num_output == 2  # without usage, one for each event


def test_an_answer_without_text_ends_with_its_first_token() -> None:
    answer = told({"choices": [{"text": "", "finish_reason": "stop"}]}, b"[DONE]")
    assert answer.ttft_s == 1.0


def test_an_error_in_a_stream_is_a_failure_even_if_it_ends_in_order() -> None:
    answer = told({"choices": [{"text": "a"}]}, {"error": {"message": "the pool is gone"}}, b"[DONE]")
    assert (answer.status, answer.detail) == (STREAM_ERROR, "the pool is gone")
    for data in (b"nonsense", b"[1]"):
        with pytest.raises(UnavailableError, match="no JSON"):
            told(data)


def test_the_result_has_the_fields_of_vllm_and_ours() -> None:
    result = result_of(
        facts(request_rate=float("inf")),
        measured(
            outcome(num_prompt=40, num_cached=30, hit_tokens=35, node="w-0"),
            outcome(num_prompt=60, num_cached=0, hit_tokens=15, node="w-1", sent_s=2.0),
            outcome(status="429", detail="slow down", ttft_s=None),
            outcome(status="cancelled", ttft_s=None),
            num_skipped=3,
        ),
    )
    assert (result["completed"], result["failed"], result["num_prompts"]) == (2, 1, 4)
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (100, 10)
    assert result["request_rate"] == "inf"
    assert result["request_throughput"] == pytest.approx(0.2)
    assert result["output_throughput"] == pytest.approx(1.0)
    assert result["total_token_throughput"] == pytest.approx(11.0)
    assert result["max_concurrent_requests"] == 2
    assert result["mean_itl_ms"] == pytest.approx(200.0)
    for figure in ("ttft", "tpot", "itl", "e2el"):
        for kind in ("mean", "median", "std", "p99"):
            assert isinstance(result[f"{kind}_{figure}_ms"], float)
    own = result["kernelflume"]
    assert own["failures"] == {"429": 1}
    assert own["failure_examples"] == {"429": "slow down"}
    assert (own["prefix_hit"], own["infinite_cache_hit"]) == (0.3, 0.5)
    assert own["classes_by"] == "usage"
    assert own["imbalance_utilisation"] == pytest.approx(1.0)
    json.dumps(result, allow_nan=False)


def test_a_run_without_a_whole_answer_has_a_result_too() -> None:
    result = result_of(facts(), measured(outcome(status="connection", ttft_s=None), duration_s=0.0))
    assert (result["completed"], result["failed"], result["mean_ttft_ms"]) == (0, 1, None)
    assert result["kernelflume"]["prefix_hit"] is None
    Console(quiet=True).print(render(result))


def remarks(**changes: Any) -> list[str]:
    return remarks_of(result_of(facts(), measured(outcome(), **changes)))


def test_a_late_client_says_so() -> None:
    assert remarks() == []
    (remark,) = remarks(lags_s=array("d", [0.001] * 90 + [0.05] * 10))
    assert remark.startswith("the client was late: its event loop lagged by 50.0 ms (p99)")


def test_what_was_left_out_is_said() -> None:
    assert "interrupted: 1 of 4 requests" in remarks(interrupted=True)[0]
    assert "2 turns were not asked" in remarks(num_skipped=2)[0]


def text_of(shown: Any) -> str:
    console = Console(width=200, record=True, quiet=True)
    with console.capture() as captured:
        console.quiet = False
        console.print(shown)
    return captured.get()


def test_the_report_shows_the_seeds_lines() -> None:
    text = text_of(
        render(result_of(facts(), measured(outcome(num_prompt=40, node="w-0"), outcome(num_prompt=300))))
    )
    for expected in ("OK=2/2", "WARM (<= 50)", "MEDIUM", "HEAVY (> 200)", "TTFT", "TPOT", "E2EL", "w-0"):
        assert expected in text


def test_two_results_side_by_side(tmp_path: Path) -> None:
    before = result_of(facts(), measured(outcome(ttft_s=0.5)))
    after = result_of(facts(), measured(outcome(ttft_s=0.25)))
    text = text_of(compare(("a", "b"), (before, after)))
    assert any(line.startswith("mean_ttft_ms") and "-50.0 %" in line for line in text.splitlines())
    foreign = {name: value for name, value in before.items() if name != "kernelflume"}
    assert "mean_ttft_ms" in text_of(compare(("a", "b"), (foreign, after)))
    path = tmp_path / "a.json"
    for content, message in (("[1]", "no result"), ("{", "no JSON"), (None, "cannot be read")):
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_text(content)
        with pytest.raises(ConfigurationError, match=message):
            compare_files(path, path)


def test_the_files_of_a_run(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "out"
    prepare_folder(folder)
    outcomes = [
        outcome(num_prompt=40, sent_s=2.0),
        outcome(num_prompt=300),
        outcome(status="429", ttft_s=None),
    ]
    result = result_of(facts(), measured(*outcomes))
    assert write_artifacts(folder, result, outcomes) == []
    assert json.loads((folder / "result.json").read_text()) == json.loads(json.dumps(result))
    rows = (folder / "requests.csv").read_text().splitlines()
    assert len(rows) == 4
    assert rows[0].startswith("session,turn,status")
    assert rows[-1].endswith("WARM")
    assert (folder / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_a_folder_that_cannot_be_is_told_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="--output-dir"):
        prepare_folder(tmp_path / "file" / "out")


def test_details_are_an_item_a_request_in_the_order_of_sending() -> None:
    gaps, tokens = array("d", [0.1, 0.2]), array("q", [7, 8, 9])
    late = Detail(outcome(sent_s=3.0, num_cached=64, hit_tokens=70), "b", tokens, gaps)
    failed = Detail(
        outcome(sent_s=1.0, status="500", detail="broken", ttft_s=None), "", array("q"), array("d")
    )
    cancelled = Detail(outcome(sent_s=2.0, status=CANCELLED), "", array("q"), array("d"))
    details = [late, failed, cancelled]
    result = result_of(facts(), measured(*(detail.outcome for detail in details), details=details))
    assert result["generated_texts"] == ["", "b"]
    assert result["errors"] == ["broken", ""]
    assert (result["ttfts"], result["itls"]) == ([0.0, 0.5], [[], [0.1, 0.2]])
    assert result["kernelflume"]["requests"][1] == {
        "session": "s", "turn": 0, "status": OK, "node": "", "prompt_tokens": 100,
        "cached_tokens": 64, "infinite_cache_tokens": 70, "token_ids": [7, 8, 9],
    }  # fmt: skip
    assert "generated_texts" not in result_of(facts(), measured(outcome()))
    assert "requests" not in result_of(facts(), measured(outcome()))["kernelflume"]
