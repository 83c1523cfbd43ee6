"""The weight node's gRPC service."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from kernelflume.core.errors import DeadlineError
from kernelflume.core.names import node_name
from kernelflume.core.retention import Retention
from kernelflume.rpc.codec import (
    geometry_to_proto,
    resumption_of,
    route_to_proto,
    sampling_from_proto,
    step_times_to_proto,
)
from kernelflume.rpc.v1 import wnode_pb2, wnode_pb2_grpc
from kernelflume.runtime.logging import LOG_FIELDS
from kernelflume.runtime.tracing import NO_TRACER
from kernelflume.wnode.attachment import Attachment
from kernelflume.wnode.replies import event_of, prompt_events
from kernelflume.wnode.traces import GenerateTrace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import grpc

    from kernelflume.runtime.tracing import Tracer
    from kernelflume.wnode.shell import Shell

    Context = grpc.aio.ServicerContext[Any, Any]

_WRITE_TIMEOUT_S = 30.0
"""A router that takes nothing for so long is gone, or will not catch up."""


class WeightNodeServicer(wnode_pb2_grpc.WeightNodeServicer):
    """Translates calls to the shell's parts; errors become status codes in ``rpc.server``."""

    def __init__(self, shell: Shell, tracer: Tracer = NO_TRACER) -> None:
        self._shell = shell
        self._tracer = tracer
        self._attachments: set[Attachment] = set()
        self._is_draining = False
        self._is_ending = False

    async def Generate(
        self, request: wnode_pb2.GenerateRequest, context: Context
    ) -> AsyncIterator[wnode_pb2.GenerateEvent]:
        """Run one request."""
        trace = GenerateTrace.begin(self._tracer, request, context.invocation_metadata())
        # The call has a task of its own, whose context nobody else shares.
        LOG_FIELDS.set({"request_id": request.request_id, **trace.ids})
        num_tokens = 0
        try:
            sampling = sampling_from_proto(request.sampling)
            stream = self._shell.requests.stream(
                request.request_id,
                list(request.prompt_token_ids),
                sampling,
                tenant=request.tenant,
                traced=trace.recording,
                resumption=resumption_of(request),
                cache_salt=request.cache_salt,
                retention=Retention.of(request.cache_retention),
            )
            async for outputs in stream:
                trace.stepped(outputs)
                if not num_tokens:
                    trace.first_token(outputs[0])
                last = outputs[-1]
                num_tokens += sum(len(output.token_ids) for output in outputs)
                for event in prompt_events(outputs[0].prompt_logprobs):
                    yield event
                if last.finish_reason:
                    trace.ended(num_tokens, last.finish_reason, num_microbatches=self._num_microbatches())
                yield event_of(outputs)
        except Exception as error:
            trace.failed(error)
            raise
        finally:
            trace.close()

    async def Attach(
        self, request_iterator: AsyncIterator[wnode_pb2.AttachRequest], context: Context
    ) -> None:
        """Run one router's requests."""
        attachment = Attachment(self._shell.requests, self._tracer, num_microbatches=self._num_microbatches)
        if self._is_ending:
            attachment.drain()
        elif self._is_draining:
            attachment.set_draining(True)
        self._attachments.add(attachment)
        reading = asyncio.create_task(attachment.read(request_iterator))
        try:
            await _write(context, wnode_pb2.AttachReply())
            while replies := await attachment.replies():
                for reply in replies:
                    await _write(context, reply)
        finally:
            self._attachments.discard(attachment)
            attachment.close()
            reading.cancel()

    def drain(self) -> None:
        """Take no more requests of attached routers, and let each go when its requests have ended."""
        self._is_ending = True
        for attachment in self._attachments:
            attachment.drain()

    async def GetLoad(self, request: wnode_pb2.GetLoadRequest, context: Context) -> wnode_pb2.WeightNodeLoad:
        """Report load and progress."""
        del request, context
        shell, report = self._shell, self._shell.report
        return wnode_pb2.WeightNodeLoad(
            num_requests_running=report.num_running if report else 0,
            num_requests_waiting=report.num_waiting if report else 0,
            max_num_waiting=shell.settings.max_num_waiting,
            num_tokens=report.num_tokens if report else 0,
            adopted_epoch=shell.adopted_epoch,
            prepared_nodes=shell.endpoints.prepared,
            num_steps=report.num_steps if report else 0,
            waiting_tokens=report.num_waiting_tokens if report else 0,
            block_tokens=shell.endpoints.block_tokens if shell.settings.enable_prefix_caching else 0,
            step_times=step_times_to_proto(report.step_times) if report and report.step_times else None,
        )

    async def GetModel(self, request: wnode_pb2.GetModelRequest, context: Context) -> wnode_pb2.ModelCard:
        """Describe the model."""
        del request, context
        shell = self._shell
        return wnode_pb2.ModelCard(
            geometry=geometry_to_proto(shell.geometry),
            max_model_len=shell.max_model_len,
            vocab_size=shell.config.vocab_size,
            eos_token_ids=shell.config.eos_token_ids,
            node_id=shell.settings.node_id,
            role=shell.settings.role,
            max_num_seqs=shell.settings.max_num_seqs,
        )

    async def PrepareEndpoint(
        self, request: wnode_pb2.PrepareEndpointRequest, context: Context
    ) -> wnode_pb2.PrepareEndpointResponse:
        """Connect to an attention node before it is published."""
        del context
        times = await self._shell.endpoints.prepare(
            node_name(request.node_id, request.incarnation), request.address
        )
        return wnode_pb2.PrepareEndpointResponse(connect_seconds=times.connect_s, warm_seconds=times.warm_s)

    async def ReleaseEndpoint(
        self, request: wnode_pb2.ReleaseEndpointRequest, context: Context
    ) -> wnode_pb2.ReleaseEndpointResponse:
        """Forget an attention node that left the table."""
        del context
        await self._shell.endpoints.release(node_name(request.node_id, request.incarnation))
        return wnode_pb2.ReleaseEndpointResponse()

    async def MoveRequests(
        self, request: wnode_pb2.MoveRequestsRequest, context: Context
    ) -> wnode_pb2.MoveRequestsResponse:
        """Ask routers to hand requests over."""
        del context
        if request.HasField("draining"):
            self._is_draining = request.draining
            for attachment in self._attachments:
                attachment.set_draining(request.draining)
        if request.HasField("draining") and not request.draining:
            return wnode_pb2.MoveRequestsResponse()
        left = request.max_requests or len(self._shell.requests)
        num_asked = 0
        for attachment in self._attachments:
            num_asked += attachment.ask_away(left - num_asked)
        return wnode_pb2.MoveRequestsResponse(num_asked=num_asked)

    async def PrepareGrammar(
        self, request: wnode_pb2.PrepareGrammarRequest, context: Context
    ) -> wnode_pb2.PrepareGrammarResponse:
        """Compile a request's grammar before the request comes."""
        del context
        await self._shell.requests.compile(sampling_from_proto(request.sampling), request.tenant)
        return wnode_pb2.PrepareGrammarResponse()

    async def ListSequences(
        self, request: wnode_pb2.ListSequencesRequest, context: Context
    ) -> wnode_pb2.ListSequencesResponse:
        """List sequences as of the engine's last report."""
        del request, context
        report = self._shell.report
        return wnode_pb2.ListSequencesResponse(
            sequences=[
                wnode_pb2.SequenceStatus(
                    sequence_id=sequence.sequence_id,
                    request_id=sequence.request_id,
                    state=sequence.state,
                    num_prompt_tokens=sequence.num_prompt_tokens,
                    num_output_tokens=sequence.num_output_tokens,
                    ranges=route_to_proto(sequence.route),
                )
                for sequence in (report.sequences if report else ())
            ]
        )

    def _num_microbatches(self) -> int:
        report = self._shell.report
        return report.num_microbatches if report else 0


async def _write(context: Context, reply: wnode_pb2.AttachReply) -> None:
    try:
        async with asyncio.timeout(_WRITE_TIMEOUT_S):
            await context.write(reply)
    except TimeoutError:
        raise DeadlineError(f"the router took nothing for {_WRITE_TIMEOUT_S:g} s") from None
