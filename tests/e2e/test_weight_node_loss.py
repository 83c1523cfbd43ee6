"""A real weight node that is killed under a running attention node, which goes on serving another one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import grpc
import psutil
import pytest
from tests.anode_process import NodeProcess, running_node, wait_until
from tests.valkey import running_valkey

from kernelflume.checkpoint.source import resolve
from kernelflume.rpc.channel import open_blocking_channel
from kernelflume.rpc.v1 import wnode_pb2, wnode_pb2_grpc
from kernelflume.runtime.service import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.redis, pytest.mark.timeout(600)]

CALL_TIMEOUT_S = 120.0
LEASE = ("--lease-ttl-s", "60")
SHORT_LEASE = ("--lease-ttl-s", "2")
"""Of the weight node that is killed; whoever lives must not lose its lease on a busy machine."""
GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "smollm2.json").read_text(encoding="utf-8"))
STREAMS = ("word", "story", "science", "list")
LONG_TOKENS = 400
"""More than a victim can generate before it is killed."""


@dataclass
class WeightNodeProcess:
    """A weight node in its own processes, spoken to as by a router."""

    node_id: str
    process: subprocess.Popen[bytes]
    log_path: Path
    stub: wnode_pb2_grpc.WeightNodeStub

    @property
    def engine(self) -> psutil.Process:
        [engine] = [
            child
            for child in psutil.Process(self.process.pid).children()
            if "spawn_main" in " ".join(child.cmdline())
        ]
        return engine

    def can_serve(self) -> bool:
        if self.process.poll() is not None:
            raise RuntimeError(f"{self.node_id} ended: {self.log_path.read_text()}")
        try:
            load = self.stub.GetLoad(wnode_pb2.GetLoadRequest(), timeout=30)
            return bool(load.prepared_nodes) and load.adopted_epoch > 0
        except grpc.RpcError:
            return False

    def generate(self, name: str, max_tokens: int) -> list[int]:
        """Return the greedy tokens that follow one of the golden prompts."""
        request = wnode_pb2.GenerateRequest(
            request_id=f"{self.node_id}-{name}",
            prompt_token_ids=GOLDEN[name]["prompt"],
            sampling=wnode_pb2.SamplingParameters(
                temperature=0.0, top_p=1.0, repetition_penalty=1.0, max_tokens=max_tokens, ignore_eos=True
            ),
        )
        return [
            token
            for event in self.stub.Generate(request, timeout=CALL_TIMEOUT_S)
            for token in event.token_ids
        ]


@contextmanager
def running(
    module: str, *arguments: str, log_path: Path, grace_s: float = 60.0
) -> Iterator[subprocess.Popen[bytes]]:
    """Run one service; its children end with it."""
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", f"kernelflume.{module}", *arguments], stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(grace_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def weight_node(node_id: str, folder: Path, *flags: str) -> Iterator[WeightNodeProcess]:
    """Run a weight node; it may still be loading its model."""
    address = f"127.0.0.1:{free_port()}"
    log_path = folder / f"{node_id}.log"
    arguments = ("--node-id", node_id, "--address", address, "--model", "smollm2", "--threads", "1")
    with (
        running("wnode", *arguments, *LEASE, *flags, log_path=log_path) as process,
        open_blocking_channel(address) as channel,
    ):
        yield WeightNodeProcess(node_id, process, log_path, wnode_pb2_grpc.WeightNodeStub(channel))


def held(node: NodeProcess) -> dict[str, int]:
    """Tokens an attention node holds for each weight node that is linked."""
    return {link.weight_node.partition("#")[0]: link.num_tokens for link in node.statistics().links}


@pytest.mark.parametrize("killed", ["shell", "engine"])
@pytest.mark.parametrize("mode", ["peer", "none"])
def test_what_a_killed_weight_node_held_is_freed_and_others_are_served(
    tmp_path: Path, mode: Literal["peer", "none"], killed: Literal["shell", "engine"]
) -> None:
    geometry = resolve("smollm2").geometry("float32", "float32")
    with ExitStack() as cleanup:
        store = cleanup.enter_context(running_valkey())
        shared = ("--redis-url", store.url, "--transport-error-handling", mode)
        scaler = ("--address", "127.0.0.1:0", "--provider", "static", "--redis-url", store.url)
        cleanup.enter_context(running("scaler", *scaler, log_path=tmp_path / "scaler.log"))
        node = cleanup.enter_context(
            running_node(
                tmp_path, "--node-id", "a-1", *LEASE, "--link-grace-s", "1", *shared, geometry=geometry
            )
        )
        victim = cleanup.enter_context(weight_node("w-1", tmp_path, *SHORT_LEASE, *shared))
        other = cleanup.enter_context(weight_node("w-2", tmp_path, *shared))
        callers = cleanup.enter_context(ThreadPoolExecutor(2 * len(STREAMS)))
        wait_until(lambda: victim.can_serve() and other.can_serve(), "both weight nodes serve")
        worker = node.worker

        lost = [callers.submit(victim.generate, name, LONG_TOKENS) for name in STREAMS]
        kept = [callers.submit(other.generate, name, len(GOLDEN[name]["output"])) for name in STREAMS]
        wait_until(lambda: all(held(node).get(name, 0) for name in ("w-1", "w-2")), "both hold tokens")
        engine = victim.engine
        (engine if killed == "engine" else victim.process).send_signal(signal.SIGKILL)

        for failed in lost:
            with pytest.raises(grpc.RpcError):
                failed.result()
        wait_until(lambda: victim.process.poll() is not None, "the weight node's shell ends")
        wait_until(lambda: not engine.is_running(), "the weight node's engine ends")
        wait_until(lambda: "w-1" not in held(node), "the dead weight node's link ends")
        assert [stream.result() for stream in kept] == [GOLDEN[name]["output"] for name in STREAMS]
        wait_until(lambda: held(node) == {"w-2": 0}, "every page is free")
        statistics = node.statistics()
        assert statistics.num_free_pages == statistics.num_pages

        restarted = cleanup.enter_context(weight_node("w-1", tmp_path, *shared))
        wait_until(restarted.can_serve, "the weight node serves again")
        for weight in (restarted, other):
            assert weight.generate("story", 48) == GOLDEN["story"]["output"]
        wait_until(lambda: held(node) == {"w-1": 0, "w-2": 0}, "every page is free")
        assert node.worker == worker
