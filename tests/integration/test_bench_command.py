"""`kernelflume bench` as a process: against the real router, and against what is none."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.router_parts import Event, endless, router, weight_node, write_model
from tests.stub_openai import stub_endpoint

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from kernelflume.rpc.v1 import wnode_pb2

TRACE = """\
{"timestamp": 0, "input_length": 1100, "output_length": 40, "hash_ids": [0, 1, 2]}
{"timestamp": 40, "input_length": 1300, "output_length": 60, "hash_ids": [0, 1, 7]}
{"timestamp": 50, "input_length": 512, "output_length": 80, "hash_ids": [9]}
"""
IDS = ("--token-ids", "10-300")


async def obliging(request: wnode_pb2.GenerateRequest) -> AsyncIterator[wnode_pb2.GenerateEvent]:
    """Give as many tokens as asked for."""
    for token in range(request.sampling.max_tokens):
        yield Event(token_ids=[70 + token % 20], num_cached_tokens=0)
    yield Event(finish_reason="length")


async def start(*arguments: str, **environment: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kernelflume.cli.main", "bench", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | environment,
    )


async def ended(process: asyncio.subprocess.Process) -> tuple[int, str, str]:
    async with asyncio.timeout(240):
        output, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode(), errors.decode()


async def run(*arguments: str, **environment: str) -> tuple[int, str, str]:
    return await ended(await start(*arguments, **environment))


async def test_a_trace_is_replayed_against_the_real_router(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    folder = write_model(tmp_path / "model")
    trace = tmp_path / "trace.jsonl"
    trace.write_text(TRACE)
    async with weight_node(folder, obliging) as node, router(folder, [node]) as url:
        out = tmp_path / "out"
        code, output, errors = await run(
            *(str(trace), "--base-url", url, "--length-scale", "16", "--output-scale", "8", *IDS),
            *("--output-dir", str(out), "--classes-by", "trace"),
        )
        assert (code, errors) == (0, "")
        assert "OK=3/3" in output
        result = json.loads((out / "result.json").read_text())
        assert result["total_input_tokens"] == 69 + 81 + 32
        assert result["total_output_tokens"] == 5 + 8 + 10
        own = result["kernelflume"]
        assert own["infinite_cache_hit"] == pytest.approx(64 / 182)
        assert {name: line["n"] for name, line in own["classes"].items()} == {
            "ALL": 3,
            "WARM": 3,
            "MEDIUM": 0,
            "HEAVY": 0,
        }
        assert (out / "plot.png").stat().st_size > 1000
        warm, *prompts = [list(request.prompt_token_ids) for request in node.requests]
        # Those that are due within milliseconds of each other may arrive in any order.
        first, second = (prompt for prompt in sorted(prompts, key=len) if len(prompt) > 32)
        assert first[:64] == second[:64]
        assert first[64] != second[64]
        assert warm[:8] not in [prompt[:8] for prompt in prompts]


@pytest.mark.parametrize("api", ["completions", "chat"])
async def test_generated_sessions_extend_over_the_real_router(tmp_path: Path, api: str) -> None:
    folder = write_model(tmp_path)
    async with weight_node(folder, obliging) as node, router(folder, [node]) as url:
        code, output, _ = await run(
            *("generated", "--base-url", url, "--num-requests", "4", "--turns", "2", "--system-tokens", "4"),
            *(
                "--first-tokens",
                "6",
                "--turn-tokens",
                "3-5",
                "--output-tokens",
                "4",
                "--think-time",
                "0",
                *IDS,
            ),
            *("--active-sessions", "1", "--warmups", "0", "--api", api, "--json", "--save-detailed"),
        )
        assert code == 0
        result: dict[str, Any] = json.loads(output)
        assert (result["completed"], result["total_output_tokens"]) == (4, 16)
        first, second = (list(request.prompt_token_ids) for request in node.requests[:2])
        shared = 14 if api == "completions" else 10
        assert second[:shared] == [*first, 70, 71, 72, 73][:shared]
        assert result["input_lens"] == [len(request.prompt_token_ids) for request in node.requests]
        assert result["output_lens"] == [4] * 4
        assert result["start_times"] == sorted(result["start_times"])
        assert all(result["generated_texts"])
        told = result["kernelflume"]["requests"]
        assert [line["turn"] for line in told] == [0, 1, 0, 1]
        assert [line["token_ids"] for line in told] == [[70, 71, 72, 73]] * 4
        assert [line["cached_tokens"] for line in told] == [0] * 4


async def test_an_interrupted_run_shows_and_writes_what_there_is(tmp_path: Path) -> None:
    folder = write_model(tmp_path)

    async with weight_node(folder, obliging) as node, router(folder, [node]) as url:
        process = await start(
            *("generated", "--base-url", url, "--turns", "2", "--system-tokens", "0", "--first-tokens", "6"),
            *("--turn-tokens", "3", "--output-tokens", "4", "--think-time", "0", "--warmups", "0", *IDS),
            *("--active-sessions", "1", "--num-requests", "2000", "--output-dir", str(tmp_path / "out")),
        )
        await node.wait(lambda: len(node.requests) > 3)
        node.script = endless(80)
        begun = len(node.requests)
        await node.wait(lambda: len(node.requests) > begun)
        process.send_signal(signal.SIGINT)
        code, output, _ = await ended(process)
    assert code == 130
    assert "interrupted: " in output
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["kernelflume"]["interrupted"] is True
    assert result["completed"] >= 2


async def test_exit_codes_and_messages(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(TRACE + "{broken\n")
    async with stub_endpoint() as stub:
        cases = [
            ((str(trace), "--base-url", stub.url), 2, "trace.jsonl:4: "),
            (("generated", "--base-url", "http://127.0.0.1:9"), 1, "nothing serves at 127.0.0.1:9"),
            (
                ("generated", "--base-url", stub.url, "--model", "gpt"),
                1,
                "does not serve gpt; it serves stub",
            ),
        ]
        found = await asyncio.gather(*(run(*arguments) for arguments, _, _ in cases))
    for (arguments, code, message), (returned, _, errors) in zip(cases, found, strict=True):
        assert returned == code, (arguments, errors)
        assert message in errors.replace("\n", " "), (arguments, errors)
        assert "Traceback" not in errors


async def test_the_api_key_comes_from_the_environment() -> None:
    async with stub_endpoint() as stub:
        arguments = (
            "generated",
            "--base-url",
            stub.url,
            "--num-requests",
            "2",
            "--turns",
            "2",
            "--think-time",
            "0",
        )
        code, output, _ = await run(
            *arguments,
            "--length-scale",
            "64",
            "--header",
            "X-Tenant: blue",
            "--json",
            OPENAI_API_KEY="sesame",
        )
        assert code == 0
        assert {asked.headers["authorization"] for asked in stub.asked} == {"bearer sesame"}
        assert {asked.headers["x-tenant"] for asked in stub.asked} == {"blue"}
        assert "sesame" not in output
