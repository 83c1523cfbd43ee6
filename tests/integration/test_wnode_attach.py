"""The stream that carries all requests of one router, at the weight node's end."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import grpc
import pytest
from tests.router_parts import SERVICE, eventually

from kernelflume.core.errors import InvalidRequestError
from kernelflume.core.grammar import Grammar, GrammarKind
from kernelflume.core.ranges import SequenceRoute
from kernelflume.core.sampling import SamplingParameters, TokenLogprobs
from kernelflume.rpc.channel import Channels
from kernelflume.rpc.codec import route_from_proto, sampling_to_proto
from kernelflume.rpc.server import Server
from kernelflume.rpc.status import failure_from_proto
from kernelflume.rpc.v1 import wnode_pb2, wnode_pb2_grpc
from kernelflume.wnode import attachment, servicer
from kernelflume.wnode.messages import Cancel, GoOn, HandOver, StepOutput, Submit, TokenOutput
from kernelflume.wnode.requests import RequestTable
from kernelflume.wnode.servicer import WeightNodeServicer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kernelflume.wnode.messages import Command

WAIT_S = 60.0
MAX_IN_FLIGHT = 4


async def compile_grammar(grammar: Grammar, tenant: str) -> bytes:
    if grammar.text == "bad":
        raise InvalidRequestError("no such regex", parameter="structured_outputs")
    if grammar.text == "slow":
        await asyncio.sleep(3600)
    return b"compiled"


class Node:
    """The weight node's own service over an engine that says what a test tells it to."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.table = RequestTable(
            self.commands.append,
            max_in_flight=MAX_IN_FLIGHT,
            max_model_len=256,
            vocab_size=1000,
            compile_grammar=compile_grammar,
        )
        shell: Any = SimpleNamespace(requests=self.table, report=None)
        self.service = WeightNodeServicer(shell)
        self.server = Server("127.0.0.1:0", [SERVICE])
        wnode_pb2_grpc.add_WeightNodeServicer_to_server(self.service, self.server.grpc_server)

    def step(self, **tokens: int | TokenOutput) -> None:
        """Deliver a step's tokens by request id."""
        outputs = (
            value if isinstance(value, TokenOutput) else TokenOutput(name, (value,))
            for name, value in tokens.items()
        )
        self.table.deliver(StepOutput(tuple(outputs)))

    async def submitted(self, *request_ids: str) -> None:
        async def done() -> bool:
            names = [command.request_id for command in self.commands if isinstance(command, Submit)]
            return set(names) >= set(request_ids)

        await eventually(done)

    async def taken(self, *last: Command) -> None:
        async def done() -> bool:
            return self.commands[-len(last) :] == list(last)

        await eventually(done)

    async def cancelled(self, *request_ids: str) -> None:
        async def done() -> bool:
            names = {command.request_id for command in self.commands if isinstance(command, Cancel)}
            return names == set(request_ids)

        await eventually(done)


class Router:
    """A router's end of the stream, by hand."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self._number = 0

    async def submit(
        self,
        request_id: str,
        *,
        timeout_s: float = 0.0,
        number: int = 0,
        hand_over: bool = False,
        **sampling: Any,
    ) -> int:
        self._number = number or self._number + 1
        parameters = SamplingParameters(**({"max_tokens": 9} | sampling))
        request = wnode_pb2.GenerateRequest(
            request_id=request_id, prompt_token_ids=[50], sampling=sampling_to_proto(parameters)
        )
        submission = wnode_pb2.Submission(
            number=self._number, request=request, timeout_seconds=timeout_s, hand_over=hand_over
        )
        await self.call.write(wnode_pb2.AttachRequest(submission=submission))
        return self._number

    async def cancel(self, number: int) -> None:
        await self.call.write(wnode_pb2.AttachRequest(cancelled=number))

    async def read(self) -> wnode_pb2.AttachReply:
        async with asyncio.timeout(WAIT_S):
            reply = await self.call.read()
        assert isinstance(reply, wnode_pb2.AttachReply), "the stream has ended"
        return reply

    async def read_failure(self, number: int) -> Exception:
        [told] = (await self.read()).events
        assert told.number == number
        return failure_from_proto(told.failure)


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    node = Node()
    await node.server.start()
    yield node
    await node.server.stop(0)


@asynccontextmanager
async def attached(node: Node) -> AsyncIterator[Router]:
    async with Channels().open(f"127.0.0.1:{node.server.port}") as channel:
        call = wnode_pb2_grpc.WeightNodeStub(channel).Attach(timeout=WAIT_S)
        router = Router(call)
        assert await router.read() == wnode_pb2.AttachReply()
        yield router
        call.cancel()


def columns(reply: wnode_pb2.AttachReply) -> list[tuple[int, int]]:
    return list(zip(reply.numbers, reply.token_ids, strict=True))


async def test_a_step_is_one_message_for_all_requests_of_a_router_and_none_of_anothers(node: Node) -> None:
    async with attached(node) as router, attached(node) as other:
        assert [await router.submit("a"), await router.submit("b"), await other.submit("c")] == [1, 2, 1]
        await node.submitted("a", "b", "c")
        node.step(a=5, c=7, b=6)
        node.step(b=8)
        assert columns(await router.read()) == [(1, 5), (2, 6), (2, 8)]
        assert columns(await other.read()) == [(1, 7)]
        node.step(b=9, a=TokenOutput("a", (10,), "stop", 2))
        reply = await router.read()
        assert columns(reply) == [(2, 9)]
        [told] = reply.events
        assert told.number == 1
        assert told.event == wnode_pb2.GenerateEvent(token_ids=[10], finish_reason="stop", stop_token_id=2)
        assert len(node.table) == 2
        await node.cancelled()
    await node.cancelled("b", "c")
    assert len(node.table) == 0


async def test_log_probabilities_and_tokens_keep_their_order(node: Node) -> None:
    found = TokenLogprobs(-0.5, ((5, -0.5), (6, -1.5)))
    async with attached(node) as router:
        number = await router.submit("a", logprobs=2, prompt_logprobs=2)
        await node.submitted("a")
        node.step(a=TokenOutput("a", (5,), logprobs=(found,), prompt_logprobs=(found,) * 1500))
        node.step(a=6)
        events = [(await router.read()) for _ in range(4)]
    sizes = [[(told.number, len(told.event.prompt_logprobs)) for told in reply.events] for reply in events]
    assert sizes == [[], [(number, 1024)], [(number, 476)], [(number, 0), (number, 0)]]
    first, second = events[3].events
    assert list(first.event.token_ids) == [5]
    assert list(first.event.logprobs[0].top_token_ids) == [5, 6]
    assert list(second.event.token_ids) == [6]


async def test_requests_are_refused_each_by_itself(node: Node) -> None:
    async with attached(node) as router:
        running = await router.submit("a")
        refused = await router.submit("a")
        assert "is in use" in str(await router.read_failure(refused))
        refused = await router.submit("b", stop_token_ids=(5000,))
        error = await router.read_failure(refused)
        assert isinstance(error, InvalidRequestError)
        assert error.parameter == "prompt"
        refused = await router.submit("c", grammar=Grammar(GrammarKind.REGEX, "bad"))
        error = await router.read_failure(refused)
        assert isinstance(error, InvalidRequestError)
        assert error.parameter == "structured_outputs"
        for name in "def":
            await router.submit(name)
        refused = await router.submit("g")
        assert "running or waiting" in str(await router.read_failure(refused))
        node.step(d=TokenOutput("d", (), "abort", error="no room"), a=5)
        reply = await router.read()
        assert columns(reply) == [(running, 5)]
        assert failure_from_proto(reply.events[0].failure).args == ("no room",)
        assert len(node.table) == 3


async def test_a_grammar_is_compiled_before_the_request_runs_and_not_for_one_that_left(node: Node) -> None:
    async with attached(node) as router:
        await router.submit("a", grammar=Grammar(GrammarKind.REGEX, "[0-9]"))
        await node.submitted("a")
        [command] = node.commands
        assert isinstance(command, Submit)
        assert command.grammar == b"compiled"
        slow = await router.submit("b", grammar=Grammar(GrammarKind.REGEX, "slow"))
        await router.cancel(slow)
        await node.cancelled("b")
        assert len(node.table) == 1


async def test_a_cancelled_request_ends_and_the_others_go_on(node: Node) -> None:
    async with attached(node) as router:
        first, second = await router.submit("a"), await router.submit("b")
        await node.submitted("a", "b")
        await router.cancel(first)
        await router.cancel(first)
        await router.cancel(77)
        await node.cancelled("a")
        node.step(a=5, b=6)
        assert columns(await router.read()) == [(second, 6)]


async def test_a_deadline_ends_a_request(node: Node) -> None:
    async with attached(node) as router:
        number = await router.submit("a", timeout_s=0.05)
        assert "longer than it may" in str(await router.read_failure(number))
        await node.cancelled("a")


@pytest.mark.parametrize("fault", ["repeats a number", "says nothing"])
async def test_a_router_that_breaks_the_protocol_is_let_go_and_harms_nobody(node: Node, fault: str) -> None:
    async with attached(node) as good, attached(node) as bad:
        await good.submit("a")
        await bad.submit("b")
        await node.submitted("a", "b")
        if fault == "repeats a number":
            await bad.submit("c", number=1)
        else:
            await bad.call.write(wnode_pb2.AttachRequest())
        assert await bad.call.code() is grpc.StatusCode.INVALID_ARGUMENT
        await node.cancelled("b")
        node.step(a=5)
        assert columns(await good.read()) == [(1, 5)]


async def test_the_end_of_the_engine_fails_all_requests(node: Node) -> None:
    async with attached(node) as router:
        await router.submit("a")
        await router.submit("b")
        await node.submitted("a", "b")
        node.table.fail_all("the engine process ended")
        failures = [failure_from_proto(told.failure) for told in (await router.read()).events]
        assert [type(failure).__name__ for failure in failures] == ["UnavailableError"] * 2


async def test_draining_lets_requests_end_and_takes_no_more(node: Node) -> None:
    async with attached(node) as router, attached(node) as idle:
        await router.submit("a")
        await node.submitted("a")
        node.service.drain()
        assert await idle.read() == wnode_pb2.AttachReply(draining=True)
        assert await router.read() == wnode_pb2.AttachReply(draining=True)
        assert await idle.call.code() is grpc.StatusCode.OK
        refused = await router.submit("b")
        assert "shutting down" in str(await router.read_failure(refused))
        node.step(a=TokenOutput("a", (5,), "stop"))
        assert (await router.read()).events[0].event.finish_reason == "stop"
        assert await router.call.code() is grpc.StatusCode.OK
    assert len(node.table) == 0


async def test_a_request_is_held_goes_on_and_is_held_again(node: Node) -> None:
    route = SequenceRoute().with_tail("a-1").extended(3)
    async with attached(node) as router:
        number = await router.submit("a")
        await node.submitted("a")
        for _ in range(2):
            await router.call.write(wnode_pb2.AttachRequest(hand_over=number))
            await node.taken(HandOver("a"))
            node.step(a=TokenOutput("a", (), held=route))
            [told] = (await router.read()).events
            assert route_from_proto(told.event.held.ranges) == route
            assert not told.event.finish_reason
            await router.call.write(wnode_pb2.AttachRequest(go_on=number))
            await node.taken(GoOn("a"))
        node.step(a=TokenOutput("a", (5,), "stop"))
        assert (await router.read()).events[0].event.finish_reason == "stop"


async def test_orders_for_requests_that_have_ended_are_ignored(node: Node) -> None:
    async with attached(node) as router:
        await router.call.write(wnode_pb2.AttachRequest(hand_over=7))
        await router.call.write(wnode_pb2.AttachRequest(go_on=7))
        number = await router.submit("a")
        await node.submitted("a")
        node.step(a=TokenOutput("a", (5,)))
        assert list((await router.read()).numbers) == [number]
        assert not [command for command in node.commands if isinstance(command, HandOver | GoOn)]


async def test_a_request_may_be_submitted_to_be_held_after_its_first_token(node: Node) -> None:
    async with attached(node) as router:
        await router.submit("a", hand_over=True)
        await node.submitted("a")
        assert [command.hands_over for command in node.commands if isinstance(command, Submit)] == [True]


async def test_a_router_is_asked_to_move_requests(node: Node) -> None:
    async with attached(node) as router:
        numbers = [await router.submit(name) for name in "abc"]
        await node.submitted("a", "b", "c")

        async def move(**fields: Any) -> tuple[int, wnode_pb2.AttachReply]:
            request = wnode_pb2.MoveRequestsRequest(**fields)
            answer = await node.service.MoveRequests(request, cast("Any", None))
            return answer.num_asked, await router.read()

        num_asked, reply = await move(max_requests=1)
        assert num_asked == 1
        assert [(told.number, told.asked_away) for told in reply.events] == [(numbers[0], True)]
        num_asked, reply = await move(draining=True)
        assert num_asked == 3
        assert [told.number for told in reply.events] == numbers
        assert await router.read() == wnode_pb2.AttachReply(draining=True)
        assert await move(draining=False) == (0, wnode_pb2.AttachReply(draining=False))


async def test_a_grammar_is_compiled_for_a_request_that_is_to_come(node: Node) -> None:
    async def prepare(text: str) -> wnode_pb2.PrepareGrammarResponse:
        sampling = SamplingParameters(grammar=Grammar(GrammarKind.REGEX, text))
        request = wnode_pb2.PrepareGrammarRequest(sampling=sampling_to_proto(sampling), tenant="t")
        return await node.service.PrepareGrammar(request, cast("Any", None))

    assert await prepare("a+") == wnode_pb2.PrepareGrammarResponse()
    with pytest.raises(InvalidRequestError):
        await prepare("bad")
    assert not node.commands


async def test_a_router_that_half_closes_gets_the_rest(node: Node) -> None:
    async with attached(node) as router:
        await router.submit("a")
        await router.call.done_writing()
        await node.submitted("a")
        node.step(a=TokenOutput("a", (5,), "length"))
        assert (await router.read()).events[0].event.finish_reason == "length"
        assert await router.call.code() is grpc.StatusCode.OK


async def test_a_router_that_reads_nothing_is_let_go_and_holds_up_nobody(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servicer, "_WRITE_TIMEOUT_S", 2.0)
    monkeypatch.setattr(attachment, "MAX_UNSENT", 8)
    async with attached(node) as stuck, attached(node) as good:
        await stuck.submit("s")
        await good.submit("g")
        await node.submitted("s", "g")
        large = tuple(range(100)) * 100

        async def flooded() -> bool:
            node.step(s=TokenOutput("s", large), g=5)
            assert set(columns(await good.read())) == {(1, 5)}
            return any(isinstance(command, Cancel) for command in node.commands)

        await eventually(flooded)
        await node.cancelled("s")
