"""Compiling grammars in a process of its own: whatever a client sends, the next one's grammar works."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from kernelflume.checkpoint.source import resolve
from kernelflume.checkpoint.vocabulary import load_vocabulary
from kernelflume.core.errors import ConfigurationError, InvalidRequestError, OverloadedError
from kernelflume.core.grammar import Grammar, GrammarKind
from kernelflume.runtime.clock import MonotonicClock
from kernelflume.wnode.grammar.compiler import GrammarCompiler
from kernelflume.wnode.grammar.lazy import LazyMatcherSource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.asyncio(loop_scope="module")

VOCAB_SIZE = 49152
EOS = (2,)
SCHEMA = json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})


@pytest.fixture(scope="module")
def folder() -> Path:
    try:
        return resolve("smollm2").path
    except ConfigurationError as error:
        pytest.skip(str(error))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def compiler(folder: Path) -> AsyncIterator[GrammarCompiler]:
    made = compiler_of(folder, timeout_s=60.0)
    made.prepare()
    yield made
    await made.close()


def compiler_of(folder: Path, *, timeout_s: float) -> GrammarCompiler:
    return GrammarCompiler(folder, vocab_size=VOCAB_SIZE, eos_token_ids=EOS, timeout_s=timeout_s)


async def test_the_first_grammar_finds_a_process_that_was_started_before(compiler: GrammarCompiler) -> None:
    worker = compiler._workers[0]
    first = asyncio.create_task(compiler.compile(Grammar(GrammarKind.REGEX, "first"), ""))
    assert compiler._preparing is not None
    # One that comes while it starts waits for it, and has no second one started.
    await compiler._preparing
    prepared = worker._process
    assert prepared is not None
    assert prepared.is_alive()
    await first
    assert worker._process is prepared
    assert compiler._workers[1]._process is None


async def test_a_process_that_just_starts_is_ended_too(folder: Path) -> None:
    made = GrammarCompiler(folder, vocab_size=VOCAB_SIZE, eos_token_ids=EOS, timeout_s=3.0)
    made.prepare()
    while made._workers[0]._process is None:  # noqa: ASYNC110 - set in another thread
        await asyncio.sleep(0.01)
    process = made._workers[0]._process
    await made.close()
    assert not process.is_alive()


async def test_a_matcher_source_made_before_is_the_one_that_is_used(folder: Path) -> None:
    source = LazyMatcherSource(
        folder, vocab_size=VOCAB_SIZE, eos_token_ids=frozenset(EOS), clock=MonotonicClock()
    )
    source.prepare()
    made = await asyncio.to_thread(source._made)
    assert source._made() is made


async def test_what_is_compiled_here_is_followed_there(folder: Path, compiler: GrammarCompiler) -> None:
    content = await compiler.compile(Grammar(GrammarKind.JSON_SCHEMA, SCHEMA), "")
    source = LazyMatcherSource(
        folder, vocab_size=VOCAB_SIZE, eos_token_ids=frozenset(EOS), clock=MonotonicClock()
    )
    tokens = load_vocabulary(folder).tokens
    matcher = source.open(content)
    for token in ("{", '"', "a", '":', "1", "}"):
        assert matcher.allowed_words().any()
        assert matcher.accept(tokens.index(token))
    matcher.allowed_words()
    assert matcher.allows_only(EOS)
    assert matcher.accept(EOS[0])
    # The second is its own.
    assert not source.open(content).accept(tokens.index("}"))


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        (GrammarKind.JSON_SCHEMA, '{"$ref": "#"}', "[Cc]ircular"),
        (GrammarKind.JSON_SCHEMA, '{"$defs":{"a":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"}', "[Cc]ircular"),
        (GrammarKind.JSON_SCHEMA, '{"type": "strin"}', "strin"),
        (GrammarKind.JSON_SCHEMA, '{"type": 5}', "string"),
        (GrammarKind.JSON_SCHEMA, '{"$ref": "#/nowhere"}', "nowhere"),
        (GrammarKind.JSON_SCHEMA, "false", "false"),
        (GrammarKind.REGEX, "(", "parenthesis"),
        (GrammarKind.REGEX, "(?=a)b", "Lookahead"),
        (GrammarKind.EBNF, "root ::= foo", "foo"),
        (GrammarKind.EBNF, "root ::= root", "no text"),
    ],
)
async def test_what_cannot_be_followed_is_refused_with_its_reason(
    compiler: GrammarCompiler, kind: GrammarKind, text: str, reason: str
) -> None:
    with pytest.raises(InvalidRequestError, match=reason) as refused:
        await compiler.compile(Grammar(kind, text), "")
    assert refused.value.parameter in {"response_format", "structured_outputs"}
    assert "cpp" not in str(refused.value)
    assert await compiler.compile(Grammar(GrammarKind.JSON_SCHEMA, SCHEMA), "")


async def test_what_takes_for_ever_is_refused_and_the_next_one_is_compiled(folder: Path) -> None:
    endless = json.dumps({"properties": {f"p{i}": {"type": "string"} for i in range(1000)}})
    compiler = compiler_of(folder, timeout_s=2.0)
    with pytest.raises(
        InvalidRequestError, match=r"too complex|too much memory|cannot be compiled|does not compile"
    ):
        await compiler.compile(Grammar(GrammarKind.JSON_SCHEMA, endless), "")
    for worker in compiler._workers:  # what is no more than slow on a busy machine is another matter
        worker._timeout_s = 60.0
    assert await compiler.compile(Grammar(GrammarKind.JSON_SCHEMA, SCHEMA), "")
    await compiler.close()


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (GrammarKind.JSON_OBJECT, ""),
        (GrammarKind.JSON_SCHEMA, '{"type":"object","properties":{"next":{"$ref":"#"}}}'),
        (GrammarKind.JSON_SCHEMA, '{"properties":{"a":' * 20 + "{}" + "}}" * 20),
        (GrammarKind.REGEX, "a{1,1000}"),
        (GrammarKind.EBNF, 'root ::= root "a" | "a"'),
        (GrammarKind.CHOICE, json.dumps(['a "b"\n', "c\\d", "é"])),
    ],
)
async def test_what_refers_to_itself_or_nests_compiles(
    compiler: GrammarCompiler, kind: GrammarKind, text: str
) -> None:
    assert await compiler.compile(Grammar(kind, text), "")


async def test_a_dead_process_is_replaced_and_a_crowd_refused(compiler: GrammarCompiler) -> None:
    await compiler.compile(Grammar(GrammarKind.REGEX, "x"), "")
    process = compiler._workers[0]._process
    assert process is not None
    process.kill()
    process.join()
    crowd = [compiler.compile(Grammar(GrammarKind.REGEX, f"y{number}"), "") for number in range(40)]
    outcomes = await asyncio.gather(*crowd, return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert len(refused) == 7
    assert all(isinstance(outcome, OverloadedError) for outcome in refused)


async def test_whoever_gives_up_leaves_no_answer_behind(compiler: GrammarCompiler) -> None:
    given_up = asyncio.create_task(compiler.compile(Grammar(GrammarKind.REGEX, "gone"), ""))
    await asyncio.sleep(0)
    given_up.cancel()
    other = await compiler.compile(Grammar(GrammarKind.REGEX, "kept"), "")
    assert b"kept" in other or other != await compiler.compile(Grammar(GrammarKind.REGEX, "gone"), "")
    with pytest.raises(asyncio.CancelledError):
        await given_up


async def test_what_was_given_up_while_it_was_compiled_is_kept(compiler: GrammarCompiler) -> None:
    grammar = Grammar(GrammarKind.REGEX, "asked for by nobody else")
    given_up = asyncio.create_task(compiler.compile(grammar, ""))
    async with asyncio.timeout(60):
        while not compiler._turns._working:  # noqa: ASYNC110 - within a few turns of the loop
            await asyncio.sleep(0)
    given_up.cancel()
    await compiler.compile(Grammar(GrammarKind.REGEX, "other"), "")  # a tenant's come one after another
    assert compiler._cached(grammar)
    with pytest.raises(asyncio.CancelledError):
        await given_up
