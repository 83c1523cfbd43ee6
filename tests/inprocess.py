"""A weight node's engine and attention nodes' exchanges in one process, over the in-memory transport.

The model is small and random. Everything else is the product's own: step loop, links, pools, kernels.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch

from kernelflume.anode.block_index import BlockIndex
from kernelflume.anode.control import ConnectOrder
from kernelflume.anode.exchange import Exchange
from kernelflume.anode.kernels import choose_kernel
from kernelflume.anode.kvpool import KvPool
from kernelflume.anode.links import prepare_link
from kernelflume.checkpoint.config import ModelConfig
from kernelflume.checkpoint.rope import RopeParameters
from kernelflume.core.handshake import Handshake
from kernelflume.core.resumption import FROM_THE_START, Resumption
from kernelflume.core.retention import Retention
from kernelflume.core.sampling import SamplingParameters, TokenLogprobs
from kernelflume.runtime.clock import Deadline, MonotonicClock
from kernelflume.tensor.reference import causal_mask, dense_attention
from kernelflume.transport.doorbell import Doorbell
from kernelflume.transport.loopback import LoopbackNetwork, LoopbackTransport
from kernelflume.transport.waiter import Waiter, WaitPolicy
from kernelflume.wnode.connector import Connector
from kernelflume.wnode.engine import Engine
from kernelflume.wnode.hand_overs import HandOvers
from kernelflume.wnode.inbox import ConstrainedSubmit, Inbox, LinkConnected, TableBuilt
from kernelflume.wnode.kernel_threads import KernelThreads
from kernelflume.wnode.ledger import AdoptedTable, Ledger
from kernelflume.wnode.link import Link
from kernelflume.wnode.links import LinkTable
from kernelflume.wnode.messages import (
    Cancel,
    CloseLink,
    ForgetLink,
    GoOn,
    HandOver,
    LinkAnswer,
    LinkOffer,
    StepOutput,
    Submit,
    TokenOutput,
)
from kernelflume.wnode.model.decoder import random_decoder
from kernelflume.wnode.prefix_cache import PrefixCache
from kernelflume.wnode.reporter import Reporter
from kernelflume.wnode.request_keys import RequestKeys
from kernelflume.wnode.scheduler import BatchLimits, Scheduler
from tests.anode import OnePlanKernel

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernelflume.anode.gpu.graph_link import GraphLink
    from kernelflume.core.geometry import KvGeometry
    from kernelflume.core.ranges import SequenceRoute
    from kernelflume.core.regions import DeviceLanes
    from kernelflume.wnode.gpu.graph_runner import GraphRunner
    from kernelflume.wnode.grammar.matcher import Matcher

CONFIG = ModelConfig(
    architecture="LlamaForCausalLM",
    num_layers=3,
    hidden_size=64,
    intermediate_size=96,
    num_query_heads=4,
    num_kv_heads=2,
    head_dim=16,
    vocab_size=256,
    rms_norm_eps=1e-5,
    rope=RopeParameters(),
    max_position_embeddings=512,
)
GEOMETRY = CONFIG.geometry("float32", "float32", "tiny", revision="1")
PAGE_TOKENS = 4
WAIT_S = 60.0
"""Bound of every wait: attention nodes are threads, which a busy machine may let wait."""


class LocalAttentionNode:
    """One exchange on a thread of its own."""

    def __init__(
        self,
        name: str,
        network: LoopbackNetwork,
        *,
        num_pages: int,
        geometry: KvGeometry = GEOMETRY,
        pinned_share: float = 0.25,
        transport: LoopbackTransport | None = None,
        threaded: bool = True,
    ) -> None:
        self.name = name
        self.geometry = geometry
        self.transport = transport or LoopbackTransport(name, network)
        self.open_device_link: Callable[[DeviceLanes], GraphLink | None] | None = None
        self.doorbell = Doorbell()
        clock = MonotonicClock()
        self.pool = KvPool(
            geometry,
            page_tokens=PAGE_TOKENS,
            num_bytes=num_pages * PAGE_TOKENS * geometry.token_bytes,
            blocks=BlockIndex(clock, pinned_share=pinned_share),
        )
        self.kernel = OnePlanKernel(choose_kernel("torch", self.pool))
        self.exchange = Exchange(
            transport=self.transport,
            doorbell=self.doorbell,
            pool=self.pool,
            clock=clock,
        )
        self._waiter = Waiter(self.transport, self.doorbell, clock, WaitPolicy())
        self._stopping = threading.Event()
        self._paused = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        if threaded:
            self._thread.start()

    @property
    def num_used_pages(self) -> int:
        return self.pool.num_pages - self.pool.num_free_pages

    @property
    def handshake(self) -> Handshake:
        return Handshake(node_name=self.name, geometry=self.geometry, transport=self.transport.kind)

    def connect(self, offer: LinkOffer) -> LinkAnswer:
        order = ConnectOrder(
            weight_node=offer.handshake.node_name,
            metadata=offer.metadata,
            num_lanes=offer.num_lanes,
            max_rows=offer.max_rows,
            partial_regions=offer.partial_regions,
            doorbell_address=offer.doorbell_address,
            device_lanes=offer.device_lanes,
        )
        connected = self.exchange.adopt(
            prepare_link(
                order,
                self.geometry,
                self.transport,
                self.pool.device,
                kernel=self.kernel,
                open_device_link=self.open_device_link,
            )
        )
        return LinkAnswer(
            handshake=self.handshake,
            metadata=connected.metadata,
            query_regions=connected.query_regions,
            append_regions=connected.append_regions,
            page_tokens=PAGE_TOKENS,
            num_pages=self.pool.num_pages,
            num_free_pages=connected.num_free_pages,
            doorbell_address=connected.doorbell_address,
            device_lanes=connected.device_lanes,
        )

    def pause(self) -> None:
        """Stop answering, as a frozen process would."""
        self._paused.set()

    def resume(self) -> None:
        """Go on."""
        self._paused.clear()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(5)
        self.doorbell.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            if self._paused.is_set():
                self._stopping.wait(0.01)
                continue
            notices = self._waiter.wait_notices(0.02, idle=True)
            if notices:
                self.exchange.turn(notices)


class Recorder:
    """Stands for the shell's pipe and keeps what the engine said."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.tokens: dict[str, list[int]] = defaultdict(list)
        self.finished: dict[str, Any] = {}
        self.logprobs: dict[str, list[TokenLogprobs]] = defaultdict(list)
        self.prompt_logprobs: dict[str, list[TokenLogprobs]] = defaultdict(list)
        self.held: dict[str, SequenceRoute] = {}
        self.random_keys: dict[str, int] = {}

    def send(self, event: Any) -> None:
        self.events.append(event)
        if isinstance(event, StepOutput):
            for output in event.outputs:
                self.tokens[output.request_id].extend(output.token_ids)
                self.logprobs[output.request_id].extend(output.logprobs)
                self.prompt_logprobs[output.request_id].extend(output.prompt_logprobs)
                if output.random_key is not None:
                    self.random_keys[output.request_id] = output.random_key
                if output.held is not None:
                    self.held[output.request_id] = output.held
                if output.finish_reason:
                    self.finished[output.request_id] = output

    def outputs_of(self, request_id: str) -> list[TokenOutput]:
        steps: list[StepOutput] = self.of(StepOutput)
        return [output for step in steps for output in step.outputs if output.request_id == request_id]

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


class LocalWeightNode:
    """An engine that the test turns by hand."""

    def __init__(
        self,
        network: LoopbackNetwork,
        *,
        name: str = "w#1",
        max_rows: int = 16,
        max_num_seqs: int = 8,
        max_range_tokens: int = 0,
        exchange_timeout_s: float = WAIT_S,
        stream_kv_rows: int = 9,
        hold_timeout_s: float = WAIT_S,
        eos_token_ids: frozenset[int] = frozenset(),
        geometry: KvGeometry = GEOMETRY,
        enable_prefix_caching: bool = True,
        transport: LoopbackTransport | None = None,
        make_runner: Callable[[LocalWeightNode], GraphRunner] | None = None,
        async_scheduling: bool = True,
    ) -> None:
        self.kv_dtype = getattr(torch, geometry.kv_dtype)
        self.largest = torch.finfo(self.kv_dtype).max
        clock = self.clock = MonotonicClock()
        self.eos_token_ids = eos_token_ids
        self.transport = transport or LoopbackTransport(name, network)
        self.doorbell = Doorbell()
        self.inbox = Inbox()
        self.links = LinkTable(
            Waiter(self.transport, self.doorbell, clock, WaitPolicy()),
            clock,
            exchange_timeout_s=exchange_timeout_s,
            gone=self.inbox.gone,
        )
        self.ledger = Ledger(self.links, max_range_tokens)
        self.scheduler = Scheduler(
            BatchLimits(max_num_seqs=max_num_seqs, max_num_batched_tokens=max_rows),
            self.ledger,
        )
        self.recorder = Recorder()
        self.prefix_cache = PrefixCache(
            links=self.links,
            ledger=self.ledger,
            scheduler=self.scheduler,
            clock=clock,
            send=self.recorder.send,
            enabled=enable_prefix_caching,
        )
        self.hand_overs = HandOvers(self.scheduler, self.prefix_cache, clock, timeout_s=hold_timeout_s)
        # One: a kernel thread that waits spins, here on the core that an attention node's thread needs.
        kernel_threads = KernelThreads(alone=1, beside=1)
        kernel_threads.apply()
        self.decoder = random_decoder(CONFIG, dtype=torch.float32, device="cpu", seed=1)
        self.runner = make_runner(self) if make_runner is not None else None
        self.connector = Connector(
            self.transport,
            self.doorbell,
            geometry,
            max_rows=max_rows,
            device=torch.device("cpu"),
            stream_kv_rows=stream_kv_rows,
            page_tokens=lambda: self.links.page_tokens,
            device_ends=self.runner.make_end if self.runner is not None else None,
        )
        self.engine = Engine(
            decoder=self.decoder,
            kv_dtype=self.kv_dtype,
            scheduler=self.scheduler,
            prefix_cache=self.prefix_cache,
            hand_overs=self.hand_overs,
            ledger=self.ledger,
            links=self.links,
            inbox=self.inbox,
            reporter=Reporter(self.recorder, clock),  # type: ignore[arg-type]
            clock=clock,
            kernel_threads=kernel_threads,
            graph_runner=self.runner,
            async_scheduling=async_scheduling,
            eos_token_ids=eos_token_ids,
            max_model_len=512,
            request_keys=RequestKeys(0, "w"),
        )
        self._epoch = 0

    def attach(self, node: LocalAttentionNode) -> None:
        """Make and warm a link."""
        offer = self.connector.open(node.name)
        assert isinstance(offer, LinkOffer)
        link = self.connector.complete(node.name, node.connect(offer))
        assert isinstance(link, Link), link
        self.inbox.put(LinkConnected(link))
        self.engine.turn()
        link.warm()
        self.turn_until(lambda: link.is_warm)

    def adopt(self, *active: str, draining: tuple[str, ...] = ()) -> None:
        self._epoch += 1
        table = AdoptedTable(self._epoch, active, frozenset((*active, *draining)))
        self.inbox.put(TableBuilt(table))

    def submit(
        self,
        request_id: str,
        prompt: list[int],
        *,
        matcher: Matcher | None = None,
        traced: bool = False,
        resumption: Resumption = FROM_THE_START,
        hands_over: bool = False,
        cache_salt: str = "",
        retention: Retention = Retention.UNCHANGED,
        **sampling: Any,
    ) -> None:
        parameters = SamplingParameters(**{"temperature": 0.0, "max_tokens": 12, **sampling})
        submit = Submit(
            request_id,
            prompt,
            parameters,
            traced=traced,
            cache_salt=cache_salt,
            resumption=resumption,
            hands_over=hands_over,
            retention=retention,
        )
        self.inbox.put(submit if matcher is None else ConstrainedSubmit(submit, matcher))

    def hand_over(self, request_id: str) -> None:
        self.inbox.put(HandOver(request_id))

    def go_on(self, request_id: str) -> None:
        self.inbox.put(GoOn(request_id))

    def cancel(self, request_id: str) -> None:
        self.inbox.put(Cancel(request_id))

    def forget_link(self, name: str, reason: str) -> None:
        self.inbox.put(ForgetLink(name, reason))

    def close_link(self, name: str) -> None:
        self.inbox.put(CloseLink(name))

    def turn_until(self, condition: Callable[[], bool]) -> None:
        deadline = Deadline(MonotonicClock(), WAIT_S)
        while not condition():
            assert not deadline.expired, "the condition never held"
            self.engine.turn()

    def run_all(self, *request_ids: str) -> list[list[int]]:
        self.turn_until(lambda: all(name in self.recorder.finished for name in request_ids))
        return [self.recorder.tokens[name] for name in request_ids]

    def reference_logits(self, tokens: list[int]) -> torch.Tensor:
        """Return every position's logits, [n, vocab], by dense float64 attention over what the pool holds."""
        return self._dense(tokens)[0]

    def reference_keys_values(self, tokens: list[int]) -> list[torch.Tensor]:
        """Return every position's keys and values as the pool holds them: a layer's [n, 2, KV heads, dim]."""
        return self._dense(tokens)[1]

    def _dense(self, tokens: list[int]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        state = self.decoder.begin(torch.tensor(tokens), torch.arange(len(tokens)))
        mask = causal_mask(len(tokens), len(tokens))
        kept = []
        for layer in range(CONFIG.num_layers):
            query = self.decoder.project_query(layer, state)
            key, value = (
                numbers.clamp(-self.largest, self.largest).to(self.kv_dtype)
                for numbers in self.decoder.project_kv(layer, state)
            )
            kept.append(torch.stack((key, value), dim=1))
            out = dense_attention(query, key.double(), value.double(), mask=mask).out.float()
            self.decoder.finish_layer(layer, state, out.reshape(len(tokens), -1))
        return self.decoder.logits(state), kept

    def reference(self, prompt: list[int], num_tokens: int) -> list[int]:
        """Generate greedily, one forward pass a token."""
        tokens = list(prompt)
        for _ in range(num_tokens):
            tokens.append(int(self.reference_logits(tokens)[-1].argmax()))
        return tokens[len(prompt) :]

    def close(self) -> None:
        self.doorbell.close()
