"""The benchmark's client against a stub that behaves, and that does not."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from tests.stub_openai import SSE_HEAD, Asked, StubEndpoint, chunk, event, plain, stream, stub_endpoint

from kernelflume.cli.bench.dialogue import Api
from kernelflume.cli.bench.endpoint import Endpoint, parse_target
from kernelflume.cli.bench.load import Asking, Load
from kernelflume.cli.bench.pacing import Pace
from kernelflume.cli.bench.schedule import Schedule
from kernelflume.cli.bench.tokens import TokenSource
from kernelflume.cli.bench.warmup import warm_up
from kernelflume.cli.bench.workload import ExtendingPrompt, HashedPrompt, Session, Turn
from kernelflume.core.errors import ConfigurationError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import numpy as np
    from numpy.typing import NDArray

    from kernelflume.cli.bench.answer import Answer
    from kernelflume.cli.bench.load import Measured
    from kernelflume.cli.bench.outcome import Outcome

BODY = json.dumps({"max_tokens": 3, "prompt": [1, 2], "return_token_ids": True}).encode()
SOURCE = TokenSource(0, 100, 200)


class Silent:
    def sent(self) -> None: ...

    def ended(self, outcome: Outcome) -> None: ...


@asynccontextmanager
async def endpoint_of(
    stub: StubEndpoint, headers: tuple[tuple[str, str], ...] = ()
) -> AsyncIterator[Endpoint]:
    endpoint = Endpoint(parse_target(stub.url, headers, None), connect_timeout_s=60)
    try:
        yield endpoint
    finally:
        endpoint.close()


async def ask(endpoint: Endpoint, *, timeout_s: float = 60) -> Answer:
    return await endpoint.stream("/completions", BODY, {}, timeout_s=timeout_s, keep_text=True)


async def test_answers_come_over_one_connection_with_their_counts_and_node() -> None:
    async def answer(request: Asked, writer: asyncio.StreamWriter) -> None:
        await stream(request, writer, extra=b"X-KernelFlume-Weight-Node: w-1\r\n", cached=1)

    async with stub_endpoint(answer) as stub, endpoint_of(stub, (("Authorization", "Bearer k"),)) as endpoint:
        models = await endpoint.models(timeout_s=60)
        assert [(model.name, model.max_model_len) for model in models] == [("stub", 4096)]
        for _ in range(3):
            found = await ask(endpoint)
            assert (found.status, found.text, found.token_ids.tolist()) == ("ok", "x x x ", [50, 51, 52])
            assert (found.num_prompt, found.num_output, found.num_cached, found.node) == (2, 3, 1, "w-1")
            assert len(found.gaps_s) == 2
            assert found.ttft_s is not None
            assert 0 <= found.ttft_s <= found.e2e_s
        assert stub.num_connections == 1
        assert stub.asked[0].path == "/v1/completions"
        assert stub.asked[0].headers["authorization"] == "bearer k"


async def test_bytes_may_be_cut_anywhere() -> None:
    async def answer(request: Asked, writer: asyncio.StreamWriter) -> None:
        whole = (
            SSE_HEAD + b"\r\n" + chunk(event({"choices": [{"text": "é"}]}) + event(b"[DONE]")) + b"0\r\n\r\n"
        )
        for at in range(len(whole)):
            writer.write(whole[at : at + 1])
            await writer.drain()

    async with stub_endpoint(answer) as stub, endpoint_of(stub) as endpoint:
        found = await ask(endpoint)
        assert (found.status, found.text) == ("ok", "é")


async def test_a_server_that_closes_after_each_answer_costs_no_request() -> None:
    async def answer(request: Asked, writer: asyncio.StreamWriter) -> None:
        await stream(request, writer)  # says that it keeps the connection
        await writer.drain()
        writer.close()

    async with stub_endpoint(answer) as stub, endpoint_of(stub) as endpoint:
        for _ in range(5):
            assert (await ask(endpoint)).ok
        assert len(stub.asked) == 5


async def failing(data: bytes, *, close: bool = True, timeout_s: float = 60.0) -> Answer:
    async def answer(request: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        if close:
            writer.close()

    async with stub_endpoint(answer) as stub, endpoint_of(stub) as endpoint:
        return await ask(endpoint, timeout_s=timeout_s)


TOKEN = chunk(event({"choices": [{"text": "a"}]}))


@pytest.mark.parametrize(
    ("data", "status", "detail"),
    [
        (plain(429, b'{"error": {"message": "slow down"}}'), "429", "slow down"),
        (plain(502, b"<html>bad gateway"), "502", "<html>bad gateway"),
        (plain(500, b"x" * 200_000), "500", "xxx"),
        (b"", "connection", "without an answer"),
        (b"SSH-2.0-x\r\n", "connection", "no HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 60_000, "connection", "has no end"),
        (SSE_HEAD + b"\r\n" + TOKEN, "incomplete", "within its answer"),
        (SSE_HEAD + b"\r\n" + TOKEN + b"0\r\n\r\n", "incomplete", r"without \[DONE\]"),
        (SSE_HEAD + b"\r\n" + TOKEN + b"zz\r\n", "connection", "no HTTP"),
        (SSE_HEAD + b"\r\n" + TOKEN + chunk(b"data: {x\n\n"), "incomplete", "no JSON"),
        (
            SSE_HEAD + b"\r\n" + TOKEN + chunk(event({"error": {"message": "lost"}})) + b"0\r\n\r\n",
            "stream-error",
            "lost",
        ),
    ],
)
async def test_each_way_to_fail_has_its_status(data: bytes, status: str, detail: str) -> None:
    found = await failing(data)
    assert found.status == status
    assert not found.ok
    assert re.search(detail, found.detail), found.detail


async def test_a_body_that_ends_with_the_connection_is_whole() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    found = await failing(head + event({"choices": [{"text": "a"}]}) + event(b"[DONE]"))
    assert (found.status, found.text) == ("ok", "a")


async def test_a_silent_server_runs_into_the_deadline() -> None:
    found = await failing(SSE_HEAD + b"\r\n" + TOKEN, close=False, timeout_s=2.0)
    assert (found.status, found.num_output) == ("timeout", 1)


async def test_what_serves_no_models_is_no_endpoint() -> None:
    async with stub_endpoint() as stub:
        port = stub.port
    endpoint = Endpoint(parse_target(f"http://127.0.0.1:{port}", (), None))
    with pytest.raises(UnavailableError, match="nothing serves at"):
        await endpoint.models(timeout_s=60)


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8000", "ftp://x", "http://", "http://x:99999", "http://u:p@x", "http://x/?a"]
)
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(ConfigurationError, match="--base-url"):
        parse_target(url, (), None)


def test_addresses_and_headers() -> None:
    assert parse_target("http://x", (), None).path == "/v1"
    assert parse_target("http://x/v1/", (), None).path == "/v1"
    assert parse_target("http://x/serve", (), None).path == "/serve/v1"
    assert parse_target("https://x", (), None).port == 443
    with pytest.raises(ConfigurationError, match="what no header can"):
        parse_target("http://x", (("a", "b\r\nc: d"),), None)


def plan(*sessions: Session, most: int | None = None) -> Schedule:
    starts = (0.0,) * len(sessions)
    return Schedule(sessions, pace=Pace.THINK, starts=starts, active_sessions=8, max_concurrency=most)


async def load(
    stub: StubEndpoint, schedule: Schedule, asking: Asking, stop: asyncio.Event | None = None
) -> Measured:
    async with endpoint_of(stub) as endpoint:
        return await Load(schedule, endpoint, asking, SOURCE, Silent()).run(stop or asyncio.Event())


COMPLETIONS = Asking(Api.COMPLETIONS, "stub", 60.0)


def talk(name: str, num_turns: int) -> Session:
    return Session(name, tuple(Turn(name, ExtendingPrompt(4), 3) for _ in range(num_turns)))


async def test_turns_extend_each_other_and_name_their_session() -> None:
    async with stub_endpoint() as stub:
        measured = await load(stub, plan(talk("a", 3), talk("b", 1)), COMPLETIONS)
    assert [outcome.status for outcome in measured.outcomes] == ["ok"] * 4
    first, second, third = (asked for asked in stub.asked if asked.headers["x-session-id"] == "a")
    assert second.body["prompt"][:7] == [*first.body["prompt"], 50, 51, 52]
    assert third.body["prompt"][:14] == [*second.body["prompt"], 50, 51, 52]
    assert first.body["user"] == "a"
    assert first.body["ignore_eos"] is True
    by_turn = {outcome.turn: outcome for outcome in measured.outcomes if outcome.session == "a"}
    assert [by_turn[turn].hit_tokens for turn in range(3)] == [0, 6, 13]
    assert measured.gaps.num_seen == 8
    assert not measured.interrupted


async def test_a_chat_sends_nothing_that_openai_does_not_know() -> None:
    asking = Asking(Api.CHAT, "stub", 60.0, openai_only=True, extra={"seed": 4})
    async with stub_endpoint() as stub:
        measured = await load(stub, plan(talk("a", 2)), asking)
    assert all(outcome.ok for outcome in measured.outcomes)
    expected = {
        "model",
        "messages",
        "max_completion_tokens",
        "temperature",
        "stream",
        "stream_options",
        "user",
        "seed",
    }
    assert set(stub.asked[0].body) == expected
    assert [each["role"] for each in stub.asked[1].body["messages"]] == ["user", "assistant", "user"]
    assert stub.asked[1].body["messages"][1]["content"] == "x x x "


async def test_a_failed_turn_ends_a_session_that_extends_it_and_no_other() -> None:
    async def answer(request: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(plain(503, b"{}"))

    told = Session("t", tuple(Turn("t", HashedPrompt("", ((0, 1),), 8, 8, "x"), 1) for _ in range(3)))
    async with stub_endpoint(answer) as stub:
        measured = await load(stub, plan(talk("a", 4), told), COMPLETIONS)
    assert [outcome.status for outcome in measured.outcomes] == ["503"] * 4
    assert measured.num_skipped == 3


async def test_no_more_at_a_time_than_allowed() -> None:
    running = most = 0
    as_many_as_may = asyncio.Event()

    async def answer(request: Asked, writer: asyncio.StreamWriter) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            as_many_as_may.set()
        await as_many_as_may.wait()
        await asyncio.sleep(0.01)
        running -= 1
        await stream(request, writer)

    async with stub_endpoint(answer) as stub:
        measured = await load(stub, plan(*(talk(str(index), 1) for index in range(12)), most=3), COMPLETIONS)
    assert (len(measured.outcomes), most) == (12, 3)


async def test_an_interruption_leaves_a_partial_result() -> None:
    stop = asyncio.Event()

    async def answer(request: Asked, writer: asyncio.StreamWriter) -> None:
        if request.headers["x-session-id"] == "a":
            await stream(request, writer)
            return
        writer.write(SSE_HEAD + b"\r\n" + TOKEN)
        stop.set()
        await asyncio.Event().wait()

    async with stub_endpoint(answer) as stub:
        sessions = (talk("a", 1), talk("b", 2))
        schedule = Schedule(sessions, pace=Pace.THINK, starts=None, active_sessions=1, max_concurrency=None)
        measured = await load(stub, schedule, COMPLETIONS, stop)
        assert measured.interrupted
        assert [outcome.status for outcome in measured.outcomes] == ["ok", "cancelled"]
        assert measured.num_skipped == 0  # what was not reached has not failed


async def test_warm_up_asks_for_other_tokens_of_the_same_length() -> None:
    told = Session("t", (Turn("t", HashedPrompt("", ((0, 2),), 8, 16, "x"), 90),))
    async with stub_endpoint() as stub, endpoint_of(stub) as endpoint:
        await warm_up(endpoint, COMPLETIONS, SOURCE, (told,), 2)
        await Load(plan(told), endpoint, COMPLETIONS, SOURCE, Silent()).run(asyncio.Event())
    prompts = [asked.body["prompt"] for asked in stub.asked]
    assert [len(prompt) for prompt in prompts] == [16, 16, 16]
    assert len({tuple(prompt[:4]) for prompt in prompts}) == 3
    assert [asked.body["max_tokens"] for asked in stub.asked] == [16, 16, 90]

    async def refuse(request: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(plain(400, b'{"error": {"message": "no such thing"}}'))

    async with stub_endpoint(refuse) as stub, endpoint_of(stub) as endpoint:
        with pytest.raises(UnavailableError, match="failed with 400: no such thing"):
            await warm_up(endpoint, COMPLETIONS, SOURCE, (told,), 1)


async def test_a_fault_of_the_client_ends_the_run_instead_of_leaving_it_waiting() -> None:
    class Broken(TokenSource):
        def text_ids(self, name: str, part: int, num_tokens: int) -> NDArray[np.int64]:
            raise RuntimeError("a fault")

    async with stub_endpoint() as stub, endpoint_of(stub) as endpoint:
        run = Load(plan(talk("a", 1)), endpoint, COMPLETIONS, Broken(0, 1, 2), Silent()).run(asyncio.Event())
        async with asyncio.timeout(60):
            with pytest.raises(RuntimeError, match="a fault"):
                await run


async def test_a_session_may_have_any_name() -> None:
    name = "Sitzung ü\r\nx: y"
    async with stub_endpoint() as stub:
        measured = await load(stub, plan(talk(name, 1)), COMPLETIONS)
    assert measured.outcomes[0].ok
    assert stub.asked[0].body["user"] == name
    assert "x" not in stub.asked[0].headers
