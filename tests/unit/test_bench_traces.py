"""Readers of traces, on excerpts made by hand."""

from __future__ import annotations

import gzip
import itertools
import json
import operator
from typing import TYPE_CHECKING, Any

import pytest

from kernelflume.cli.bench.fitting import Fitting, fit
from kernelflume.cli.bench.formats import TraceFormat, read_trace
from kernelflume.cli.bench.tokens import TokenSource
from kernelflume.cli.bench.workload import HashedPrompt
from kernelflume.core.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

    from kernelflume.cli.bench.workload import Session

MOONCAKE = """\
{"timestamp": 3000, "input_length": 1100, "output_length": 52, "hash_ids": [0, 1, 2]}
{"timestamp": 4500, "input_length": 1300, "output_length": 0, "hash_ids": [0, 1, 7], "extra": true}

{"timestamp": 4500, "input_length": 512, "output_length": 9, "hash_ids": [9]}
"""
AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
"""


def request(**changes: Any) -> dict[str, Any]:
    base = {"t": 0.0, "type": "n", "in": 130, "out": 5, "think_time": 0.0, "hit_blocks": 0}
    return base | {"blocks": 2, "hash_rle": [[1, 2]]} | changes


def agentic_line(*requests: dict[str, Any]) -> str:
    return json.dumps({"id": "trace_1", "block_size": 64, "tool_tokens": 3, "requests": requests})


AGENT = {
    "t": 7.0,
    "type": "subagent",
    "agent_id": "agent_001",
    "requests": [request(t=1.0, hash_rle=[[50, 2]])],
}
AGENTIC = agentic_line(
    request(),
    request(t=9.0, think_time=4.0, hit_blocks=1, hash_rle=[[1, 1], [8, 2]], **{"in": 200}),
    AGENT,
)


def read(folder: Path, text: str | bytes, trace_format: TraceFormat | None = None) -> list[Session]:
    path = folder / "trace"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return list(read_trace(path, trace_format)[1])


def prompt_of(session: Session, place: int = 0) -> HashedPrompt:
    prompt = session.turns[place].prompt
    assert isinstance(prompt, HashedPrompt)
    return prompt


def test_mooncake(tmp_path: Path) -> None:
    first, second, third = read(tmp_path, MOONCAKE)
    assert [each.arrival_s for each in (first, second, third)] == [3.0, 4.5, 4.5]
    assert prompt_of(first).runs == ((0, 3),)
    assert prompt_of(second).runs == ((0, 2), (7, 1))
    assert prompt_of(second).num_tokens == 1300
    # The hashes are global: the second one's first two blocks were seen.
    assert [each.turns[0].hit_tokens for each in (first, second, third)] == [0, 1024, 0]
    assert third.turns[0].conversation == ""
    assert len({prompt_of(each).tail for each in (first, second, third)}) == 3


def test_agentic_session_with_a_sub_agent(tmp_path: Path) -> None:
    (session,) = read(tmp_path, AGENTIC)
    assert session.arrival_s is None
    assert [turn.conversation for turn in session.turns] == ["trace_1", "trace_1", "trace_1/agent_001"]
    assert [turn.offset_s for turn in session.turns] == [0.0, 9.0, 8.0]
    assert [turn.think_s for turn in session.turns] == [0.0, 4.0, 0.0]
    assert [turn.hit_tokens for turn in session.turns] == [0, 64, 0]
    assert prompt_of(session, 1).runs == ((1, 1), (8, 2))
    # Hashes mean the same within the session, sub-agents included, and nothing outside of it.
    assert {prompt_of(session, place).namespace for place in range(3)} == {"trace_1"}


def test_azure(tmp_path: Path) -> None:
    first, second = read(tmp_path, AZURE)
    assert first.arrival_s == 0.0
    assert second.arrival_s == pytest.approx(4.314579)
    assert (prompt_of(second).num_tokens, second.turns[0].num_output) == (396, 109)


@pytest.mark.parametrize(
    ("text", "expected"),
    [(MOONCAKE, TraceFormat.MOONCAKE), (AGENTIC, TraceFormat.AGENTIC), (AZURE, TraceFormat.AZURE)],
)
def test_the_first_line_tells_the_format_plain_and_gzip(
    tmp_path: Path, text: str, expected: TraceFormat
) -> None:
    for content in (text.encode(), gzip.compress(text.encode())):
        path = tmp_path / "trace"
        path.write_bytes(content)
        found, sessions = read_trace(path)
        assert found is expected
        assert list(sessions)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "trace: the trace is empty"),
        ("hello\n", "trace:1: of no known format"),
        ('{"a": 1}\n', "trace:1: of no known format"),
        (MOONCAKE + "{broken\n", "trace:5: "),
        (AZURE.replace("\n", "\r"), "trace:1: no line of CSV"),
        (AZURE + "x" * 200_000 + ",1,2\n", "trace:4: no line of CSV"),
        (MOONCAKE.replace("[9]", "[9, 10]"), "trace:4: 2 hash_ids; 512 tokens are 1 blocks"),
        (MOONCAKE.replace("512", "-512"), "trace:4: input_length: "),
        (
            MOONCAKE.replace(
                '"timestamp": 4500, "input_length": 512', '"timestamp": 1e999, "input_length": 512'
            ),
            ":4",
        ),
        (AZURE.replace("396", "many"), "trace:3: ContextTokens: 'many' is no number"),
        (AZURE.replace("2023-11-16 18:15:50.9951690", "yesterday"), "trace:3: TIMESTAMP"),
        (AZURE + "2023-11-16 18:15:50,1\n", "trace:4: 2 columns"),
        (AGENTIC + "\n" + agentic_line(request(hit_blocks=3)), "trace:2: .*hit_blocks 3 of 2"),
        (agentic_line(request(hash_rle=[[1, 9]])), "trace:1: .*9 blocks of 64 in hash_rle for 130"),
        (agentic_line({"t": 0.0}), "trace:1: requests.0.request.in: "),
        (b"\x1f\x8bno gzip", "trace:1: damaged gzip data"),
        (gzip.compress(MOONCAKE.encode() * 50)[:-20], r"trace:\d+: damaged gzip data"),
        (MOONCAKE.encode() + b"\xff\xfe\n", "trace:5: no UTF-8 text"),
    ],
)
def test_a_damaged_trace_is_told_with_file_and_line(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read(tmp_path, text)


def test_a_folder_and_a_missing_file_are_no_traces(tmp_path: Path) -> None:
    for path, message in ((tmp_path, "no regular file"), (tmp_path / "none", "No such file")):
        with pytest.raises(ConfigurationError, match=message):
            read_trace(path)


def test_a_line_without_end_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelflume.cli.bench.tracefile.MAX_LINE_BYTES", 100)
    with pytest.raises(ConfigurationError, match="trace:2: longer than 100 bytes"):
        read(tmp_path, MOONCAKE.splitlines()[0] + "\n" + "x" * 200, TraceFormat.MOONCAKE)


def num_shared(first: list[int], second: list[int]) -> int:
    return sum(itertools.takewhile(bool, map(operator.eq, first, second)))


@pytest.mark.parametrize("scale", [1.0, 7.0, 32.0])
@pytest.mark.parametrize("text", [MOONCAKE, AGENTIC])
def test_prompts_share_as_many_tokens_as_the_trace_tells(tmp_path: Path, text: str, scale: float) -> None:
    source = TokenSource(0, 1000, 30000)
    fitted = fit(read(tmp_path, text), Fitting(num_requests=9, length_scale=scale))
    before: list[list[int]] = []
    for session in fitted.sessions:
        for place, turn in enumerate(session.turns):
            ids = source.prompt_ids(prompt_of(session, place)).tolist()
            shared = max((num_shared(ids, earlier) for earlier in before), default=0)
            assert min(shared, len(ids) - 1) == turn.hit_tokens
            before.append(ids)
