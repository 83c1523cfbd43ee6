"""The step loop of a weight node (paper section 3.2): plan, project, dispatch, merge, sample, commit.

One thread runs it. Between two steps it takes commands, adopts a routing snapshot and takes in what nodes
reported; inside a step the batch, the routes and the links do not change, so every token uses one snapshot.
In steady decode the next step is launched while one is under way (docs/adr/0014-launch-ahead.md).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kernelflume.core.errors import PeerLostError
from kernelflume.core.names import split_name
from kernelflume.core.sampling import FinishReason
from kernelflume.wnode.ahead import Outlook, ending, obstacle
from kernelflume.wnode.inbox import ConstrainedSubmit, LinkConnected, TableBuilt
from kernelflume.wnode.messages import (
    Adopted,
    Cancel,
    CloseLink,
    ForgetLink,
    GoOn,
    HandOver,
    LinkClosed,
    LinkFailed,
    LinkLost,
    LinkReady,
    RoutesChanged,
    StepTrace,
    Stop,
    Submit,
    TokenOutput,
)
from kernelflume.wnode.posted_steps import PostedSteps
from kernelflume.wnode.sequence import Sequence, SequenceState
from kernelflume.wnode.step_clock import StepClock

if TYPE_CHECKING:
    import torch

    from kernelflume.core.profile import StepTimes
    from kernelflume.core.sampling import TokenLogprobs
    from kernelflume.runtime.clock import Clock
    from kernelflume.wnode.batch import Chunk, StepBatch
    from kernelflume.wnode.gpu.graph_runner import GraphRunner
    from kernelflume.wnode.gpu.step_in_flight import StepInFlight
    from kernelflume.wnode.grammar.matcher import Matcher
    from kernelflume.wnode.hand_overs import HandOvers
    from kernelflume.wnode.inbox import Inbox, InboxItem
    from kernelflume.wnode.kernel_threads import KernelThreads
    from kernelflume.wnode.ledger import Ledger
    from kernelflume.wnode.link import Link
    from kernelflume.wnode.links import LinkTable
    from kernelflume.wnode.model.decoder import Decoder
    from kernelflume.wnode.prefix_cache import PrefixCache
    from kernelflume.wnode.reporter import Reporter
    from kernelflume.wnode.request_keys import RequestKeys
    from kernelflume.wnode.sampler import Sampled
    from kernelflume.wnode.scheduler import Scheduler

logger = logging.getLogger(__name__)

_STEPS_ALONE = 64
"""Steps that are not launched ahead after a token that the host had to draw: it may have to draw more."""
_IDLE_WAIT_S = 0.02
"""Longest time between two looks at the inbox while nothing runs; the doorbell ends it early."""


class Engine:
    """Runs sequences until it is told to stop. All its parts are used by this thread alone."""

    def __init__(
        self,
        *,
        decoder: Decoder,
        kv_dtype: torch.dtype,
        scheduler: Scheduler,
        prefix_cache: PrefixCache,
        hand_overs: HandOvers,
        ledger: Ledger,
        links: LinkTable,
        inbox: Inbox,
        reporter: Reporter,
        clock: Clock,
        kernel_threads: KernelThreads,
        graph_runner: GraphRunner | None = None,
        async_scheduling: bool = False,
        eos_token_ids: frozenset[int],
        max_model_len: int,
        request_keys: RequestKeys,
    ) -> None:
        self._decoder = decoder
        self._scheduler = scheduler
        self._prefix_cache = prefix_cache
        self._hand_overs = hand_overs
        self._ledger = ledger
        self._links = links
        self._inbox = inbox
        self._reporter = reporter
        self._clock = clock
        self._step_clock = StepClock(clock)
        self._kernel_threads = kernel_threads
        self._posted_steps = PostedSteps(
            decoder=decoder,
            kv_dtype=kv_dtype,
            links=links,
            kernel_threads=kernel_threads,
            clock=clock,
            step_clock=self._step_clock,
            eos_token_ids=eos_token_ids,
        )
        self._graph_runner = graph_runner
        self._async_scheduling = async_scheduling
        config = decoder.config
        self._token_bytes = config.num_layers * 2 * config.num_kv_heads * config.head_dim * kv_dtype.itemsize
        if graph_runner is not None:
            reporter.num_graph_captures = graph_runner.steps.num_captures
        self._eos_token_ids = eos_token_ids
        self._max_model_len = max_model_len
        self._request_keys = request_keys
        self._num_steps = 0
        self._stopping = False
        self._warming: dict[str, tuple[Link, float]] = {}
        self._under_way: StepInFlight | None = None
        """Launched behind the step that was settled last; between turns alone."""
        self._ended: list[Sequence] = []
        """Sequences that ended and have a row in the step under way: their pages are freed after it."""
        self._settled_at_s = 0.0
        self._waits_until = 0
        """Number of steps before which none is launched behind another."""

    def run(self) -> None:
        """Run steps until a ``Stop`` comes."""
        self._kernel_threads.apply()
        while not self._stopping:
            self.turn()

    def turn(self) -> None:
        """Do what is due between steps and run one, or settle the one under way; wait where there is none.

        Where nothing is in the way the step behind the one under way is launched before that is settled.
        """
        step = self._under_way
        if step is not None:
            self._step_clock.begin()
        else:
            batch = self._prepare()
            if batch is None:
                self._rest()
                return
            self._num_steps += 1
            self._step_clock.begin()
            if self._graph_runner is None or not self._graph_runner.can_run(batch):
                self._post(batch)
                return
            try:
                step = self._graph_runner.launch(batch, self._num_steps)
            except PeerLostError as error:
                self._lose(error)
                return
        self._under_way = self._launch_behind(step)
        self._settle(step)

    # --- between steps -------------------------------------------------------------------------------

    def _handle(self, item: InboxItem) -> None:
        match item:
            case Submit():
                self._submit(item)
            case ConstrainedSubmit():
                self._submit(item.submit, item.matcher)
            case Cancel() | HandOver() | GoOn():
                sequence = self._scheduler.find(item.request_id)
                if sequence is not None:
                    self._interrupt(sequence, item)
            case CloseLink():
                self._close_link(item.node_name)
            case ForgetLink():
                if self._links.get(item.node_name) is not None:
                    self._lose(PeerLostError(item.node_name, item.reason))
            case Stop():
                self._stopping = True
            case LinkConnected():
                self._links.add(item.link)
                self._warming[item.link.node_name] = (item.link, self._clock.now())
                item.taken.set()
            case TableBuilt():
                self._adopt(item)

    def _interrupt(self, sequence: Sequence, command: Cancel | HandOver | GoOn) -> None:
        match command:
            case Cancel():
                self._end(sequence)
                self._emit(TokenOutput(sequence.request_id, (), FinishReason.ABORT))
            case HandOver():
                self._hand_overs.order(sequence)
            case GoOn():
                self._hand_overs.go_on(sequence)

    def _submit(self, submit: Submit, matcher: Matcher | None = None) -> None:
        sequence = Sequence(
            submit.request_id,
            submit.prompt,
            submit.sampling,
            self._random_key(submit),
            self._clock.now(),
            matcher=matcher,
            traced=submit.traced,
            cache_salt=submit.cache_salt,
            retention=submit.retention,
            output=list(submit.resumption.output_token_ids),
            handed=submit.resumption.route,
            hands_over=submit.hands_over,
        )
        self._prefix_cache.enter(sequence)
        self._scheduler.submit(sequence)

    def _random_key(self, submit: Submit) -> int:
        if submit.sampling.seed is not None:
            return submit.sampling.seed
        key = submit.resumption.random_key
        return self._request_keys.next() if key is None else key

    def _adopt(self, item: TableBuilt) -> None:
        started = self._clock.now()
        self._ledger.adopt(item.table)
        installed = self._clock.now()
        gone = {
            node_id
            for sequence in self._scheduler.all
            for node_id in sequence.route.node_ids
            if node_id not in item.table.known
        }
        for node_id in gone:
            link = self._links.of_node(node_id)
            name = link.node_name if link is not None else node_id
            self._lose(PeerLostError(name, f"it left the routing table at epoch {item.table.epoch}"))
        num_moved = self._ledger.rebalance(self._scheduler.running)
        self._reporter.send(
            Adopted(item.table.epoch, installed - started, self._clock.now() - installed, num_moved)
        )

    def _close_link(self, node_name: str) -> None:
        link = self._links.get(node_name)
        if link is not None:
            holders = [
                sequence.request_id
                for sequence in self._scheduler.all
                if link.node_id in sequence.route.node_ids
            ]
            if holders:
                reason = f"{len(holders)} sequences have ranges on {node_name}"
                self._reporter.send(LinkFailed(node_name, reason))
                return
            self._links.close(node_name)
            self._prefix_cache.lose(link.node_id)
            self._prefix_cache.forget_link(node_name)
            self._warming.pop(node_name, None)
        self._reporter.send(LinkClosed(node_name))

    def _prepare(self) -> StepBatch | None:
        """Take in commands and what nodes reported, and choose the next step's rows."""
        for item in self._inbox.take():
            self._handle(item)
        self._links.poll()
        self._take_reports()
        plan = self._scheduler.schedule(self._prefix_cache.is_ready)
        self._prefix_cache.give_back(plan.returns)
        if plan.victim is not None:
            self._give_way(plan.victim)
        return plan.batch

    def _rest(self) -> None:
        """Wait a little, as there is no step to run."""
        self._step_clock.rest()
        self._reporter.report_idle(self._scheduler, self._ledger, hand_overs=self._hand_overs.counts)
        is_expecting = bool(self._warming) or self._prefix_cache.is_expecting or self._hand_overs.is_expecting
        self._links.poll(_IDLE_WAIT_S, idle=not is_expecting)

    @property
    def _has_news(self) -> bool:
        """True when something is to be done between two steps."""
        return (
            self._stopping
            or not self._inbox.is_empty
            or any(link.is_warm for link, _ in self._warming.values())
            or any(link.failed_sequences for link in self._links.all())
            or self._prefix_cache.is_due
            or self._hand_overs.is_due
        )

    def _take_reports(self) -> None:
        """Take in what nodes reported since the last step."""
        for name, (link, since) in list(self._warming.items()):
            if link.is_warm:
                del self._warming[name]
                link.open_device()
                self._reporter.send(LinkReady(name, self._clock.now() - since))
        for link in self._links.all():
            failed, link.failed_sequences = link.failed_sequences, {}
            for sequence in [s for s in self._scheduler.running if s.sequence_id in failed]:
                logger.warning(
                    "%s could not store request %s: recomputing", link.node_name, sequence.request_id
                )
                self._restart(sequence)
            for sequence in [s for s in self._scheduler.held if s.sequence_id in failed]:
                self._prefix_cache.abandon(sequence)
        self._prefix_cache.advance()
        for sequence in self._hand_overs.take_named():
            self._emit(TokenOutput(sequence.request_id, (), held=sequence.route))
        for sequence in self._hand_overs.expired():
            self._fail(sequence, "it was to go on on another weight node, of which nothing was heard")
        for refusal in self._scheduler.refusals():
            self._fail(refusal.sequence, refusal.reason)

    def _give_way(self, sequence: Sequence) -> None:
        """Make room in a full pool."""
        is_alone = len(self._scheduler.running) == 1 and self._scheduler.has_pool_alone(sequence)
        if is_alone and sequence.num_restarts and sequence.num_tokens <= sequence.num_tokens_at_restart:
            self._fail(sequence, "the attention nodes have no room for the request's keys and values")
            return
        logger.info("pool is full: request %s gives way", sequence.request_id)
        self._restart(sequence)
        self._prefix_cache.pause(sequence)

    # --- one step ------------------------------------------------------------------------------------

    def _post(self, batch: StepBatch) -> None:
        """Run a step that no graph does."""
        started = self._clock.now()
        self._links.begin_step()
        try:
            chunks, sampled, lost = self._posted_steps.run(batch, self._num_steps)
        except PeerLostError as error:
            # Nothing was stored for this step: the sequences that do not need the node just run it again.
            self._lose(error)
            return
        self._commit(batch, chunks, sampled, started)
        for loss in lost:
            self._lose(loss)
        times = self._step_clock.end(rows=batch.num_rows, num_layers=self._decoder.config.num_layers)
        self._report(batch, len(chunks), started, times)

    def _launch_behind(self, step: StepInFlight) -> StepInFlight | None:
        """Launch the step behind one that is under way, unless that must be settled first."""
        runner = self._graph_runner
        if not self._async_scheduling or runner is None or not runner.can_launch_behind:
            return None
        outlook = Outlook(
            running=[sequence.sequence_id for sequence in self._scheduler.running],
            has_news=self._has_news or self._num_steps < self._waits_until,
            could_admit=self._scheduler.could_admit(self._prefix_cache.is_ready),
        )
        if obstacle(step.batch, outlook) is not None:
            return None
        leaving = ending(step.batch, max_model_len=self._max_model_len)
        batch = self._scheduler.schedule_behind(step.batch, leaving)
        if batch is None or not runner.can_run(batch):
            return None
        self._num_steps += 1
        try:
            return runner.launch(batch, self._num_steps)
        except PeerLostError:
            return None  # nobody was told; the next step that is prepared tells what that means

    def _settle(self, step: StepInFlight) -> None:
        """Wait for a step of graphs and take its tokens in."""
        assert self._graph_runner is not None  # noqa: S101 - it launched the step
        self._links.begin_step()
        loss: PeerLostError | None = None
        settled = None
        try:
            settled = self._graph_runner.settle(step)
        except PeerLostError as error:
            loss = error
        if settled is None:
            # Neither this step nor the one behind it has stored anything: their sequences run them again.
            self._under_way = None
            self._free_ended()
            if loss is not None:
                self._lose(loss)
            else:
                self._waits_until = self._num_steps + _STEPS_ALONE
            return
        started = max(step.launched_at_s, self._settled_at_s)
        self._settled_at_s = self._clock.now()
        chunks, sampled = settled
        self._commit(step.batch, chunks, sampled, started, number=step.number)
        steps = self._graph_runner.steps
        self._reporter.num_graph_captures = steps.num_captures
        self._links.kv_traffic.graph_bytes += step.batch.num_rows * self._token_bytes
        times = self._step_clock.end_graph(steps.stages, rows=step.batch.num_rows)
        self._report(step.batch, len(chunks), started, times, num_microbatches=steps.num_microbatches)

    def _report(
        self,
        batch: StepBatch,
        num_tokens: int,
        started_at_s: float,
        times: StepTimes | None,
        *,
        num_microbatches: int = 0,
    ) -> None:
        self._reporter.report_step(
            self._scheduler,
            self._ledger,
            num_rows=batch.num_rows,
            num_tokens=num_tokens,
            seconds=self._clock.now() - started_at_s,
            waited_s=self._links.waited_s,
            times=times,
            num_microbatches=num_microbatches,
            kv_traffic=self._links.kv_traffic,
            hand_overs=self._hand_overs.counts,
        )

    def _commit(
        self,
        batch: StepBatch,
        chunks: list[Chunk],
        sampled: Sampled,
        started_at_s: float,
        *,
        number: int = -1,
    ) -> None:
        """Take in what a step stored and chose.

        ``number`` is that of a step of graphs. A posted step does not get here where some node lacks what a
        row's plan named.
        """
        vain = self._in_vain(batch, number)
        changed: dict[int, Sequence] = {}
        for chunk in batch.chunks:
            sequence = chunk.sequence
            opened = self._ledger.commit(sequence, chunk.writes)
            if sequence.sequence_id in vain:
                continue
            if opened:
                changed[sequence.sequence_id] = sequence
            sequence.num_computed += chunk.num_rows
            if sequence.queue_s is None:
                sequence.queue_s = started_at_s - sequence.submitted_at_s
            if sequence.traced:
                self._trace_step(sequence, chunk.num_rows, batch.num_rows, started_at_s)
        if changed:
            self._reporter.send(RoutesChanged({key: s.route for key, s in changed.items()}, ()))
        self._free_ended()
        counted = [
            (chunk.sequence, token, sampled.logprobs.get(row))
            for row, (chunk, token) in enumerate(zip(chunks, sampled.tokens, strict=True))
            if chunk.sequence.sequence_id not in vain
        ]
        self._take_tokens(counted)

    def _take_tokens(self, chosen: list[tuple[Sequence, int, TokenLogprobs | None]]) -> None:
        outputs: list[TokenOutput] = []
        ended: list[Sequence] = []
        for sequence, token, logprobs in chosen:
            if not sequence.is_prompt_named:
                self._prefix_cache.name(sequence)
            output = self._take_token(sequence, token, logprobs)
            outputs.append(output)
            if output.finish_reason:
                self._prefix_cache.name(sequence)  # before it is told: the client may be back at once
                ended.append(sequence)
        self._emit(*outputs)
        for sequence in ended:
            self._end(sequence)
        for sequence, _, _ in chosen:
            if sequence.hands_over and sequence.state is SequenceState.RUNNING:
                self._hand_overs.hold(sequence)

    def _in_vain(self, batch: StepBatch, number: int) -> frozenset[int]:
        """Return the sequences whose rows of this step count for nothing.

        When it was launched the step ahead was not settled, with which such a sequence came to its end. Or
        some node dropped it for want of a page, in an earlier step or in this one, and then what its row
        attended to may be another's.
        """
        failed = {
            sequence_id
            for link in self._links.all()
            for sequence_id, step in link.failed_sequences.items()
            if step <= number
        }
        return frozenset(
            chunk.sequence.sequence_id
            for chunk in batch.chunks
            if chunk.sequence.state is SequenceState.ENDED or chunk.sequence.sequence_id in failed
        )

    def _trace_step(self, sequence: Sequence, num_rows: int, batch_rows: int, started_at_s: float) -> None:
        waited = self._links.waited_for_s
        waits = tuple((node, waited[node]) for node in sequence.route.node_ids if node in waited)
        sequence.steps.append(StepTrace(self._clock.now() - started_at_s, num_rows, batch_rows, waits))

    def _take_token(self, sequence: Sequence, token: int, logprobs: TokenLogprobs | None) -> TokenOutput:
        sampling = sequence.sampling
        queue_s = random_key = None
        num_cached = 0
        if not sequence.has_told:
            queue_s = sequence.queue_s
            num_cached = sequence.num_cached or 0
            if sampling.seed is None and not sampling.is_greedy:
                random_key = sequence.random_key
            if sequence.num_handed:
                self._hand_overs.count_taken(sequence)
            elif self._prefix_cache.looks_up(sequence):
                self._reporter.count_prefix(len(sequence.prompt), num_cached)
        prompt_logprobs, sequence.prompt_logprobs = tuple(sequence.prompt_logprobs), []
        is_eos = token in self._eos_token_ids and (not sampling.ignore_eos or sequence.matcher is not None)
        if is_eos or token in sampling.stop_token_ids:
            return TokenOutput(
                sequence.request_id,
                (),
                FinishReason.STOP,
                token,
                queue_s=queue_s,
                prompt_logprobs=prompt_logprobs,
                num_cached_tokens=num_cached,
                steps=sequence.take_steps(),
                random_key=random_key,
            )
        if sequence.matcher is not None and not sequence.matcher.accept(token):
            return TokenOutput(
                sequence.request_id, (), FinishReason.ABORT, error=sequence.matcher.failure, invalid=True
            )
        sequence.append(token)
        is_full = len(sequence.output) >= sampling.max_tokens or sequence.num_tokens >= self._max_model_len
        reason = FinishReason.LENGTH if is_full else ""
        return TokenOutput(
            sequence.request_id,
            (token,),
            reason,
            queue_s=queue_s,
            logprobs=() if logprobs is None else (logprobs,),
            prompt_logprobs=prompt_logprobs,
            num_cached_tokens=num_cached,
            steps=sequence.take_steps(),
            random_key=random_key,
        )

    # --- ends ----------------------------------------------------------------------------------------

    def _end(self, sequence: Sequence) -> None:
        self._hand_overs.forget(sequence)
        behind = self._under_way.batch.chunks if self._under_way is not None else ()
        if any(chunk.sequence is sequence for chunk in behind):
            self._ended.append(sequence)
        else:
            self._prefix_cache.release(sequence)
        self._scheduler.remove(sequence)

    def _free_ended(self) -> None:
        """Free sequences that ended while they had a row in the step under way, which is done now."""
        ended, self._ended = self._ended, []
        for sequence in ended:
            self._prefix_cache.release(sequence)

    def _fail(self, sequence: Sequence, reason: str) -> None:
        self._end(sequence)
        self._emit(TokenOutput(sequence.request_id, (), FinishReason.ABORT, error=reason))

    def _restart(self, sequence: Sequence) -> None:
        self._prefix_cache.release(sequence)
        self._scheduler.restart(sequence)
        self._reporter.count_restart()

    def _lose(self, loss: PeerLostError) -> None:
        """Drop a node that is gone and recompute the sequences that had ranges there, and only those."""
        node_id = split_name(loss.peer)[0]
        link = self._links.of_node(node_id)
        if link is not None:
            self._links.close(link.node_name)
            self._prefix_cache.forget_link(link.node_name)
        self._prefix_cache.lose(node_id)
        affected = [s for s in self._scheduler.running if node_id in s.route.node_ids]
        for sequence in reversed(affected):
            self._restart(sequence)
        logger.error("%s; recomputing %d sequences", loss, len(affected))
        self._reporter.send(LinkLost(loss.peer, loss.reason, len(affected)))

    def _emit(self, *outputs: TokenOutput) -> None:
        self._reporter.send_tokens(outputs)
