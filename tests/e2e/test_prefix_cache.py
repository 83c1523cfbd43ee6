"""What was computed before is found again: tokens stay, and ``cached_tokens`` counts every whole block."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from tests.stack import WAIT_S, Stack, Stream, cached_tokens, serve
from typer.testing import CliRunner

from kernelflume.cli.main import app

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.redis, pytest.mark.timeout(1500)]

GOLDEN: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "golden" / "smollm2.json").read_text(encoding="utf-8")
)
PAGE_TOKENS = 16
NUM_TOKENS = 8
SETTINGS = {"KERNELFLUME_ANODE_PAGE_TOKENS": str(PAGE_TOKENS), "KERNELFLUME_WNODE_SPREAD_TOKENS": "64"}
SESSIONS = {
    "chat": ("chat_gravity", "chat_poem", "letter"),
    "code": ("code_python", "code_c", "word"),
    "long": ("long_1500", "history", "chat_advice"),
}
"""Name -> what each turn brings."""
MAX_PIECE = 250
"""Tokens of the longest piece: enough to be spread over three nodes."""


def whole_blocks(num_tokens: int) -> int:
    return num_tokens // PAGE_TOKENS * PAGE_TOKENS


Turn = tuple[list[int], list[int]]
"""The whole prompt, and the answer."""


async def play(stack: Stack, name: str) -> list[Turn]:
    """Play a session in which no turn shares with another."""
    context: list[int] = []
    turns: list[Turn] = []
    for number, piece in enumerate(SESSIONS[name]):
        context = context + GOLDEN[piece]["prompt"][:MAX_PIECE]
        answer = await stack.complete(context, NUM_TOKENS, cache_salt=f"{name} {number} by itself")
        assert cached_tokens(answer) == 0
        output = answer["choices"][0]["token_ids"]
        turns.append((context, output))
        context = context + output
    return turns


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with serve(tmp_path_factory.mktemp("cache"), "--attention-nodes", "1", **SETTINGS) as served:
        yield served


@pytest.fixture(scope="module")
def sessions(stack: Stack) -> dict[str, list[Turn]]:
    """All sessions as they go where everything is computed."""

    async def play_all() -> dict[str, list[Turn]]:
        turns = await asyncio.gather(*(play(stack, name) for name in SESSIONS))
        return dict(zip(SESSIONS, turns, strict=True))

    return asyncio.run(play_all())


async def check(stack: Stack, turns: list[Turn], *, salt: str, at_least: int | None = None) -> None:
    """Play a session and compare tokens, and what was cached with what the turns before computed.

    Args:
        stack: what serves it.
        turns: how it goes.
        salt: keeps it apart from other plays.
        at_least: cached tokens of the turns after the first may be fewer, down to this many; None: may not.
    """
    num_computed = 0
    for context, output in turns:
        answer = await stack.complete(context, NUM_TOKENS, cache_salt=salt)
        assert answer["choices"][0]["token_ids"] == output
        expected = whole_blocks(num_computed)
        if at_least is None:
            assert cached_tokens(answer) == expected
        else:
            assert min(at_least, expected) <= cached_tokens(answer) <= expected
            assert cached_tokens(answer) % PAGE_TOKENS == 0
        num_computed = len(context) + NUM_TOKENS - 1  # the last token was never an input


@pytest.mark.parametrize("num_nodes", [1, 3])
async def test_each_turn_finds_all_of_the_turns_before(
    stack: Stack, sessions: dict[str, list[Turn]], num_nodes: int
) -> None:
    await asyncio.to_thread(stack.scale, num_nodes)
    for name, turns in sessions.items():
        await check(stack, turns, salt=f"alone {num_nodes} {name}")
    await asyncio.gather(
        *(check(stack, turns, salt=f"together {num_nodes} {name}") for name, turns in sessions.items())
    )
    await stack.wait_baseline()


async def test_sessions_go_on_across_scale_events(stack: Stack, sessions: dict[str, list[Turn]]) -> None:
    """Growing loses nothing; a node that leaves takes with it what nobody uses."""
    await asyncio.to_thread(stack.scale, 1)
    turns = sessions["long"]
    await check(stack, turns[:2], salt="grows")
    await asyncio.to_thread(stack.scale, 3)
    num_computed = len(turns[1][0]) + NUM_TOKENS - 1
    for context, output in turns[2:]:
        answer = await stack.complete(context, NUM_TOKENS, cache_salt="grows")
        assert answer["choices"][0]["token_ids"] == output
        assert cached_tokens(answer) == whole_blocks(num_computed)
        num_computed = len(context) + NUM_TOKENS - 1
    shrinking = asyncio.create_task(asyncio.to_thread(stack.scale, 1))
    await asyncio.gather(
        *(check(stack, each, salt=f"shrinks {name}", at_least=0) for name, each in sessions.items())
    )
    await shrinking
    await asyncio.gather(*(check(stack, each, salt=f"shrank {name}") for name, each in sessions.items()))
    await stack.wait_baseline()


async def test_common_beginning_of_concurrent_requests(stack: Stack) -> None:
    system = GOLDEN["long_1500"]["prompt"][: MAX_PIECE + 3]
    pieces = [golden["prompt"][:20] for name, golden in GOLDEN.items() if name.startswith(("chat", "code"))]
    prompts = [[*system, 100 + number, *piece] for number, piece in enumerate(pieces)]
    alone = await asyncio.gather(
        *(
            stack.generate(prompt, NUM_TOKENS, cache_salt=f"alone {number}")
            for number, prompt in enumerate(prompts)
        )
    )
    await stack.complete(system, 1, cache_salt="common")
    answers = await asyncio.gather(
        *(stack.complete(prompt, NUM_TOKENS, cache_salt="common") for prompt in prompts)
    )
    assert [answer["choices"][0]["token_ids"] for answer in answers] == alone
    assert [cached_tokens(answer) for answer in answers] == [whole_blocks(len(system))] * len(prompts)
    await stack.wait_baseline()


async def test_choices_of_one_prompt_and_equal_prompts_compute_it_once(stack: Stack) -> None:
    prompt = GOLDEN["long_1500"]["prompt"][7 : MAX_PIECE + 7]
    alone = await stack.generate(prompt, NUM_TOKENS, cache_salt="alone")
    before = await num_cached_by_nodes(stack)
    answer = await stack.complete(prompt, NUM_TOKENS, n=4, cache_salt="choices")
    assert [choice["token_ids"] for choice in answer["choices"]] == [alone] * 4
    assert cached_tokens(answer) == 0  # a prompt is counted once, as its first choice found it
    shared = whole_blocks(len(prompt) - 1)
    assert await num_cached_by_nodes(stack) - before == 3 * shared
    answers = await asyncio.gather(
        *(stack.complete(prompt, NUM_TOKENS, cache_salt="requests") for _ in range(3))
    )
    assert [each["choices"][0]["token_ids"] for each in answers] == [alone] * 3
    assert sorted(map(cached_tokens, answers)) == [0, shared, shared]
    await stack.wait_baseline()


async def num_cached_by_nodes(stack: Stack) -> int:
    async with httpx.AsyncClient(timeout=WAIT_S) as client:
        lines = (await client.get(f"{stack.url}/metrics")).text.splitlines()
    name = "kernelflume_router_node_cached_tokens_total{"
    return sum(int(float(line.rpartition(" ")[2])) for line in lines if line.startswith(name))


async def test_attention_node_that_is_killed_costs_no_token(
    stack: Stack, sessions: dict[str, list[Turn]]
) -> None:
    await asyncio.to_thread(stack.scale, 3)
    turns = sessions["long"]
    await check(stack, turns[:2], salt="killed")
    prompt = GOLDEN["long_2000"]["prompt"][:MAX_PIECE]
    expected = await stack.generate(prompt, 20)
    stream = Stream()
    running = asyncio.create_task(stack.stream(prompt, 20, stream, cache_salt="killed"))
    while len(stream.token_ids) < 5:  # noqa: ASYNC110 - filled by another task
        await asyncio.sleep(0.05)
    victim = next(
        process
        for process in stack.attention_node_processes()
        if "kernelflume.anode.worker" in " ".join(process.cmdline())
    )
    victim.kill()
    await running
    assert stream.token_ids == expected
    for context, output in turns[2:]:
        answer = await stack.complete(context, NUM_TOKENS, cache_salt="killed")
        assert answer["choices"][0]["token_ids"] == output
        assert cached_tokens(answer) % PAGE_TOKENS == 0
    again = await stack.complete(turns[-1][0], NUM_TOKENS, cache_salt="killed")
    assert again["choices"][0]["token_ids"] == turns[-1][1]
    assert cached_tokens(again) == whole_blocks(len(turns[-1][0]) - 1)


async def test_every_format_tells_what_was_cached(stack: Stack) -> None:
    messages = [{"role": "user", "content": "Tell me of " + " and ".join(f"town {n}" for n in range(40))}]
    common = {"model": "smollm2", "temperature": 0, "cache_salt": "formats"}
    async with httpx.AsyncClient(timeout=WAIT_S, base_url=stack.url) as client:

        async def chat(**fields: Any) -> dict[str, Any]:
            body = {**common, "messages": messages, "max_tokens": 2, **fields}
            answer = await client.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200, answer.text
            if not fields.get("stream"):
                usage: dict[str, Any] = answer.json()["usage"]
                return usage
            chunks = [line.removeprefix("data: ") for line in answer.text.splitlines() if "usage" in line]
            last: dict[str, Any] = json.loads(chunks[-1])["usage"]
            return last

        first = await chat()
        assert first["prompt_tokens_details"]["cached_tokens"] == 0
        expected = whole_blocks(first["prompt_tokens"] - 1)
        assert expected > 100
        assert (await chat())["prompt_tokens_details"]["cached_tokens"] == expected
        streamed = await chat(stream=True, stream_options={"include_usage": True})
        assert streamed["prompt_tokens_details"]["cached_tokens"] == expected
        answer = await client.post(
            "/v1/responses",
            json={**common, "input": messages[0]["content"], "max_output_tokens": 2},
        )
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["input_tokens_details"]["cached_tokens"] == expected
        other = await chat(cache_salt="other")
        assert other["prompt_tokens_details"]["cached_tokens"] == 0


async def test_two_keys_never_share(tmp_path: Path) -> None:
    keys_file = tmp_path / "keys.json"
    keys = [create_key(name, keys_file) for name in ("alice", "bob")]
    prompt = GOLDEN["long_1500"]["prompt"][:100]
    environment = {"KERNELFLUME_ROUTER_AUTH__KEYS_FILE": str(keys_file)}
    with serve(tmp_path / "log", "--attention-nodes", "1", **SETTINGS, **environment) as served:
        answers = [await served.complete(prompt, NUM_TOKENS, key=key) for key in (*keys, *keys)]
    assert len({tuple(answer["choices"][0]["token_ids"]) for answer in answers}) == 1
    shared = whole_blocks(len(prompt) - 1)
    assert [cached_tokens(answer) for answer in answers] == [0, 0, shared, shared]


def create_key(name: str, path: Path) -> str:
    result = CliRunner().invoke(app, ["keys", "create", name, "--file", str(path)])
    assert result.exit_code == 0, result.output
    return result.stdout.strip()
