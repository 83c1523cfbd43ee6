"""Parts for tests of the router: a tiny model folder, a scripted weight node, a router on a real port."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import struct
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from kernelflume.checkpoint.source import resolve
from kernelflume.core.errors import InvalidRequestError, UnavailableError
from kernelflume.router import weightnodes
from kernelflume.router.lifecycle import serve
from kernelflume.router.settings import RouterSettings
from kernelflume.rpc.server import Server
from kernelflume.rpc.status import failure_to_proto
from kernelflume.rpc.v1 import common_pb2, wnode_pb2, wnode_pb2_grpc
from kernelflume.runtime.service import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
    from pathlib import Path

    from kernelflume.runtime.tls import TlsFiles

SERVICE = "kernelflume.rpc.v1.WeightNode"
SPECIAL_TOKENS = ["<|bos|>", "<|im_start|>", "<|im_end|>"]
UNCOMPILABLE = "[a]{1,99}"
"""Regular expression that scripted weight nodes do not prepare."""
BOS_ID, START_ID, END_ID = range(3)
MAX_MODEL_LEN = 256
WAIT_S = 120.0
"""Bound of every wait; what is waited for may be a process that starts on a busy machine."""
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.content == 'refuse me' %}{{ raise_exception('refused as asked') }}{% endif %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if mood %}mood: {{ mood }}\n{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_CORPUS = ["Hello world, this is a story about a tokenizer. Héllo 世界 😀 def main(): return 42"] * 4


def byte_level_tokenizer(*, with_bos: bool = False) -> Tokenizer:
    """Return a small tokenizer in which any byte string has tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    if with_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|bos|> $A", special_tokens=[("<|bos|>", BOS_ID)]
        )
    return tokenizer


def write_model(
    folder: Path,
    *,
    with_bos: bool = False,
    generation: dict[str, Any] | None = None,
    chat_template: str = TEMPLATE,
) -> Path:
    """Write a model folder with a real tokenizer; the weights are named but empty of meaning."""
    tokenizer = byte_level_tokenizer(with_bos=with_bos)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<|bos|>", "eos_token": {"content": "<|im_end|>"}, "chat_template": chat_template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps(generation or {}))
    (folder / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                "hidden_size": 8,
                "intermediate_size": 8,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "num_key_value_heads": 1,
                "vocab_size": tokenizer.get_vocab_size(),
                "max_position_embeddings": MAX_MODEL_LEN,
                "rms_norm_eps": 1e-5,
                "rope_theta": 10000.0,
                "eos_token_id": END_ID,
                "tie_word_embeddings": True,
            }
        )
    )
    _write_safetensors(
        folder / "model.safetensors", "model.embed_tokens.weight", tokenizer.get_vocab_size() * 8
    )
    return folder


def _write_safetensors(path: Path, name: str, num_values: int) -> None:
    header = json.dumps(
        {name: {"dtype": "F32", "shape": [num_values // 8, 8], "data_offsets": [0, 4 * num_values]}}
    ).encode()
    header += b" " * (-len(header) % 8)
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(4 * num_values))


Event = wnode_pb2.GenerateEvent


def likely(token_id: int, num_top: int) -> wnode_pb2.TokenLogprobs:
    """Return the log probabilities of a token that is the likeliest, before those that follow it by id."""
    top = range(token_id, token_id + num_top)
    return wnode_pb2.TokenLogprobs(
        logprob=-0.5, top_token_ids=top, top_logprobs=[-0.5 - place for place in range(num_top)]
    )


def saying(*token_ids: int, reason: str = "stop", stop_token_id: int | None = END_ID) -> Any:
    """Return a script that emits one token an event, with log probabilities where asked for, then ends."""

    async def script(request: wnode_pb2.GenerateRequest) -> AsyncIterator[wnode_pb2.GenerateEvent]:
        sampling = request.sampling
        if sampling.HasField("prompt_logprobs"):
            rest = request.prompt_token_ids[1:]
            yield Event(prompt_logprobs=[likely(token, sampling.prompt_logprobs) for token in rest])
        for token_id in token_ids:
            asked = [likely(token_id, sampling.logprobs)] if sampling.HasField("logprobs") else []
            yield Event(token_ids=[token_id], logprobs=asked)
        yield Event(finish_reason=reason, stop_token_id=stop_token_id)

    return script


def counting(*, pause_s: float = 0.0, lost_after: int | None = None) -> Any:
    """Return a script that emits the tokens 100, 101, ... from where an earlier run ended to ``max_tokens``.

    With ``lost_after`` the run is lost once there are so many.
    """

    async def script(request: wnode_pb2.GenerateRequest) -> AsyncIterator[wnode_pb2.GenerateEvent]:
        place = len(request.resumption.output_token_ids)
        while True:
            if place == lost_after:
                raise UnavailableError("going down")
            is_last = place == request.sampling.max_tokens - 1
            yield Event(token_ids=[100 + place], finish_reason="length" if is_last else "")
            if is_last:
                return
            place += 1
            await asyncio.sleep(pause_s)

    return script


def endless(token_id: int, *, pause_s: float = 0.005) -> Any:
    """Return a script that emits a token for ever."""

    async def script(request: wnode_pb2.GenerateRequest) -> AsyncIterator[wnode_pb2.GenerateEvent]:
        while True:
            yield Event(token_ids=[token_id])
            await asyncio.sleep(pause_s)

    return script


class Gate:
    """Holds a run before its next token while it is closed."""

    def __init__(self, *, after_first: bool) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self._closes = after_first

    def after_token(self) -> None:
        if self._closes:
            self._closes = False
            self.open.clear()


class ScriptedWeightNode(wnode_pb2_grpc.WeightNodeServicer):
    """A real gRPC server whose tokens come from a script."""

    def __init__(self, folder: Path, script: Any, *, tls: TlsFiles | None = None) -> None:
        checkpoint = resolve(str(folder))
        self.card = wnode_pb2.ModelCard(
            geometry=common_pb2.KvGeometry(model_id=checkpoint.model_id, model_revision=checkpoint.revision),
            max_model_len=MAX_MODEL_LEN,
            vocab_size=checkpoint.config.vocab_size,
            eos_token_ids=[END_ID],
        )
        self.load = wnode_pb2.WeightNodeLoad(max_num_waiting=8, prepared_nodes=["a-1#1"])
        self.script = script
        self.sequences: list[wnode_pb2.SequenceStatus] = []
        self.requests: list[wnode_pb2.GenerateRequest] = []
        self.cancelled: list[str] = []
        self.prepared: list[wnode_pb2.PrepareGrammarRequest] = []
        self.may_prepare = asyncio.Event()
        """Grammars that are to be prepared take until it is set."""
        self.may_prepare.set()
        self.takes_routers = True
        self.held = wnode_pb2.Held(ranges=[common_pb2.OwnedRange(node_id="a-1", start=0, end=1)])
        """Where held requests have their keys and values."""
        self.attached: list[asyncio.Queue[wnode_pb2.AttachReply | Exception]] = []
        """What each attached router is told next; an error breaks its stream."""
        self.changed = asyncio.Condition()
        self.server = Server("127.0.0.1:0", [SERVICE], tls=tls)
        wnode_pb2_grpc.add_WeightNodeServicer_to_server(self, self.server.grpc_server)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    async def start(self) -> None:
        await self.server.start()
        await self.server.set_serving(serving=True)

    async def Generate(  # noqa: N802 - gRPC's name
        self, request: wnode_pb2.GenerateRequest, context: Any
    ) -> AsyncGenerator[wnode_pb2.GenerateEvent, None]:
        async with self.changed:
            self.requests.append(request)
            self.changed.notify_all()
        try:
            async for event in self.script(request):
                yield event
        except (asyncio.CancelledError, GeneratorExit):
            async with self.changed:
                self.cancelled.append(request.request_id)
                self.changed.notify_all()
            raise

    async def Attach(self, messages: AsyncIterator[wnode_pb2.AttachRequest], context: Any) -> None:  # noqa: N802
        if not self.takes_routers:
            raise UnavailableError("no routers are taken")
        replies: asyncio.Queue[wnode_pb2.AttachReply | Exception] = asyncio.Queue(16)
        self.attached.append(replies)
        runs: dict[int, asyncio.Task[None]] = {}
        gates: dict[int, Gate] = {}

        async def read() -> None:
            async for message in messages:
                match message.WhichOneof("kind"):
                    case "submission":
                        number = message.submission.number
                        gates[number] = Gate(after_first=message.submission.hand_over)
                        running = self._run(message.submission, gates[number], context, replies)
                        runs[number] = asyncio.create_task(running)
                    case "hand_over":
                        gates[message.hand_over].open.clear()
                    case "go_on":
                        gates[message.go_on].open.set()
                    case _:
                        runs[message.cancelled].cancel()

        reading = asyncio.create_task(read())
        replies.put_nowait(wnode_pb2.AttachReply())
        try:
            while True:
                reply = await replies.get()
                if isinstance(reply, Exception):
                    raise reply
                await context.write(reply)
        finally:
            self.attached.remove(replies)
            for task in (reading, *runs.values()):
                task.cancel()
            await asyncio.gather(*runs.values(), return_exceptions=True)

    async def _run(
        self,
        submission: wnode_pb2.Submission,
        gate: Gate,
        context: Any,
        replies: asyncio.Queue[wnode_pb2.AttachReply | Exception],
    ) -> None:
        number = submission.number
        try:
            # Closed here, and not when it is collected: a cancelled run that is held is told of at once.
            async with contextlib.aclosing(self.Generate(submission.request, context)) as events:
                async for event in events:
                    if not gate.open.is_set():
                        held = wnode_pb2.RequestEvent(number=number, event=Event(held=self.held))
                        await replies.put(wnode_pb2.AttachReply(events=[held]))
                        await gate.open.wait()
                    gate.after_token()
                    if event == Event(token_ids=event.token_ids) and len(event.token_ids) == 1:
                        await replies.put(wnode_pb2.AttachReply(numbers=[number], token_ids=event.token_ids))
                    else:
                        told = wnode_pb2.RequestEvent(number=number, event=event)
                        await replies.put(wnode_pb2.AttachReply(events=[told]))
            error: Exception = UnavailableError("the script ended without a reason")
        except Exception as raised:  # noqa: BLE001 - told as a weight node would
            error = raised
        told = wnode_pb2.RequestEvent(number=number, failure=failure_to_proto(error))
        await replies.put(wnode_pb2.AttachReply(events=[told]))

    async def PrepareGrammar(  # noqa: N802 - gRPC's name
        self, request: wnode_pb2.PrepareGrammarRequest, context: Any
    ) -> wnode_pb2.PrepareGrammarResponse:
        async with self.changed:
            self.prepared.append(request)
            self.changed.notify_all()
        await self.may_prepare.wait()
        if request.sampling.grammar.text == UNCOMPILABLE:
            raise InvalidRequestError("it cannot be compiled")
        return wnode_pb2.PrepareGrammarResponse()

    async def GetLoad(self, request: Any, context: Any) -> wnode_pb2.WeightNodeLoad:  # noqa: N802
        return self.load

    async def GetModel(self, request: Any, context: Any) -> wnode_pb2.ModelCard:  # noqa: N802
        return self.card

    async def ListSequences(  # noqa: N802
        self, request: Any, context: Any
    ) -> wnode_pb2.ListSequencesResponse:
        return wnode_pb2.ListSequencesResponse(sequences=self.sequences)

    async def wait(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S), self.changed:
            await self.changed.wait_for(condition)


@asynccontextmanager
async def weight_node(
    folder: Path,
    script: Any,
    *,
    num_tokens: int = 0,
    node_id: str = "w-1",
    role: str = "",
    block_tokens: int = 0,
) -> AsyncIterator[ScriptedWeightNode]:
    """Run a weight node that reports ``num_tokens`` tokens of running sequences."""
    node = ScriptedWeightNode(folder, script)
    node.load.num_tokens = num_tokens
    node.load.block_tokens = block_tokens
    node.card.node_id = node_id
    node.card.role = role
    await node.start()
    try:
        yield node
    finally:
        await node.server.stop(0)


@asynccontextmanager
async def router(folder: Path, nodes: Sequence[ScriptedWeightNode], **settings: Any) -> AsyncIterator[str]:
    """Run a router in this process; give its base URL once it listens and ``wait_for`` nodes serve."""
    wait_for = settings.pop("wait_for", 1)
    port = free_port()
    stop = asyncio.Event()
    full: dict[str, Any] = {
        "model": str(folder),
        "served_model_name": ("tiny", "also-tiny"),
        "weight_nodes": tuple(node.address for node in nodes),
        "refresh_interval": 0.05,
        "shutdown_timeout": 5.0,
    }
    with pytest.MonkeyPatch.context() as patch:
        # A weight node that is asked on a busy machine answers late, and is not away.
        patch.setattr(weightnodes, "_PROBE_TIMEOUT_S", WAIT_S)
        serving = asyncio.create_task(serve(RouterSettings(**(full | settings), port=port), stop))
        try:
            await wait_listening(port, serving)
            if nodes:
                await wait_ready(port)
                serving_nodes = f'weight_nodes{{serving="true"}} {float(wait_for)}'.encode()

                async def all_serve() -> bool:
                    return serving_nodes in await fetch(port, "GET", "/metrics")

                if wait_for > 1:
                    await eventually(all_serve)
            yield f"http://127.0.0.1:{port}"
        finally:
            stop.set()
            await serving


async def wait_listening(port: int, serving: asyncio.Task[None] | None = None) -> None:
    async with asyncio.timeout(WAIT_S):
        while serving is None or not serving.done():
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return
            await asyncio.sleep(0.02)
    await serving


async def eventually(condition: Callable[[], Awaitable[bool]], *, timeout_s: float = WAIT_S) -> None:
    """Ask again and again until the answer is yes."""
    async with asyncio.timeout(timeout_s):
        while not await condition():  # noqa: ASYNC110 - what is asked is often in another process
            await asyncio.sleep(0.02)


async def wait_ready(port: int) -> None:
    async def is_ready() -> bool:
        return (await fetch(port, "GET", "/ready")).startswith(b"HTTP/1.1 200")

    await eventually(is_ready)


def moves_of(metrics: str) -> dict[tuple[str, str], int]:
    """Return a router's moves by outcome and reason, as its metrics show them."""
    found = re.findall(
        r'^kernelflume_router_hand_overs_total\{outcome="(\w+)",reason="(\w+)"\} ([0-9.]+)$',
        metrics,
        re.MULTILINE,
    )
    return {(outcome, reason): int(float(number)) for outcome, reason, number in found}


def port_of(url: str) -> int:
    return int(url.rsplit(":", 1)[1])


async def connect_narrowly(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect for a client that reads late or never: it is behind after kilobytes, not after megabytes."""
    connection = socket.socket()
    connection.setblocking(False)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
    return await asyncio.open_connection(sock=connection, limit=1024)


def post(body: dict[str, Any]) -> bytes:
    """Return a completion request as bytes, for clients that misbehave."""
    content = json.dumps(body).encode()
    head = f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    return b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n" + head.encode() + content


async def fetch(port: int, method: str, path: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return answer


def frames(lines: Iterator[str] | Sequence[str]) -> list[Any]:
    """Return the payloads of server-sent events, ``[DONE]`` as text."""
    payloads = [line.removeprefix("data: ") for line in lines if line]
    return [payload if payload == "[DONE]" else json.loads(payload) for payload in payloads]
