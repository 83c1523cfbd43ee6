"""Core values to protocol messages and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelflume.core.errors import InvalidRequestError
from kernelflume.core.geometry import KvGeometry
from kernelflume.core.grammar import Grammar, GrammarKind
from kernelflume.core.handshake import Handshake
from kernelflume.core.profile import StepTimes
from kernelflume.core.ranges import OwnedRange, SequenceRoute, TokenRange
from kernelflume.core.regions import DeviceLanes, LanePath, MemoryRegion
from kernelflume.core.resumption import FROM_THE_START, Resumption
from kernelflume.core.sampling import SamplingParameters, TokenLogprobs
from kernelflume.rpc.v1 import anode_pb2, common_pb2, wnode_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable


def geometry_to_proto(geometry: KvGeometry) -> common_pb2.KvGeometry:
    """Encode a geometry."""
    return common_pb2.KvGeometry(**geometry.to_dict())


def geometry_from_proto(message: common_pb2.KvGeometry) -> KvGeometry:
    """Decode a geometry.

    Raises:
        ConfigurationError: a field is out of range.
    """
    return KvGeometry(
        model_id=message.model_id,
        model_revision=message.model_revision,
        num_layers=message.num_layers,
        num_query_heads=message.num_query_heads,
        num_kv_heads=message.num_kv_heads,
        head_dim=message.head_dim,
        dtype=message.dtype,
        kv_dtype=message.kv_dtype,
    )


def handshake_to_proto(handshake: Handshake) -> common_pb2.Handshake:
    """Encode a handshake."""
    return common_pb2.Handshake(
        node_name=handshake.node_name,
        geometry=geometry_to_proto(handshake.geometry),
        transport=handshake.transport,
        protocol_version=handshake.protocol_version,
        layout_id=handshake.layout_id,
    )


def handshake_from_proto(message: common_pb2.Handshake) -> Handshake:
    """Decode a handshake."""
    return Handshake(
        node_name=message.node_name,
        geometry=geometry_from_proto(message.geometry),
        transport=message.transport,
        protocol_version=message.protocol_version,
        layout_id=message.layout_id,
    )


def region_to_proto(region: MemoryRegion) -> common_pb2.MemoryRegion:
    """Encode a memory region."""
    return common_pb2.MemoryRegion(
        address=region.address, num_bytes=region.num_bytes, kind=region.kind, device=region.device
    )


def region_from_proto(message: common_pb2.MemoryRegion) -> MemoryRegion:
    """Decode a memory region."""
    return MemoryRegion(message.address, message.num_bytes, message.kind, message.device)


def device_lanes_to_proto(lanes: DeviceLanes | None) -> anode_pb2.DeviceLanes | None:
    """Encode device lanes, None as an unset field."""
    if lanes is None:
        return None
    return anode_pb2.DeviceLanes(
        max_rows=lanes.max_rows,
        query_first=lanes.query_first,
        lanes=[anode_pb2.DeviceLane(regions=map(region_to_proto, regions)) for regions in lanes.lanes],
        path=lanes.path,
    )


def device_lanes_of(message: anode_pb2.ConnectRequest | anode_pb2.ConnectResponse) -> DeviceLanes | None:
    """Decode device lanes, None where the field is unset."""
    if not message.HasField("device_lanes"):
        return None
    lanes = message.device_lanes
    return DeviceLanes(
        lanes.max_rows,
        lanes.query_first,
        tuple(tuple(map(region_from_proto, lane.regions)) for lane in lanes.lanes),
        lanes.path or LanePath.DEVICE,
    )


def route_to_proto(route: SequenceRoute) -> list[common_pb2.OwnedRange]:
    """Encode a route's ranges in order."""
    return [
        common_pb2.OwnedRange(node_id=owned.node_id, start=owned.tokens.start, end=owned.tokens.end)
        for owned in route.ranges
    ]


def route_from_proto(ranges: Iterable[common_pb2.OwnedRange]) -> SequenceRoute:
    """Decode a route's ranges.

    Raises:
        LifecycleError: they do not cover [0, n) in order.
    """
    return SequenceRoute(
        tuple(OwnedRange(owned.node_id, TokenRange(owned.start, owned.end)) for owned in ranges)
    )


def sampling_to_proto(sampling: SamplingParameters) -> wnode_pb2.SamplingParameters:
    """Encode sampling parameters."""
    return wnode_pb2.SamplingParameters(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        seed=sampling.seed,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        stop_token_ids=sampling.stop_token_ids,
        ignore_eos=sampling.ignore_eos,
        logit_bias=dict(sampling.logit_bias),
        allowed_token_ids=sampling.allowed_token_ids,
        logprobs=sampling.logprobs,
        prompt_logprobs=sampling.prompt_logprobs,
        grammar=_grammar_to_proto(sampling.grammar) if sampling.grammar is not None else None,
    )


def sampling_from_proto(message: wnode_pb2.SamplingParameters) -> SamplingParameters:
    """Decode sampling parameters.

    Raises:
        InvalidRequestError: a field is out of range.
    """
    return SamplingParameters(
        temperature=message.temperature,
        top_p=message.top_p,
        top_k=message.top_k,
        min_p=message.min_p,
        seed=message.seed if message.HasField("seed") else None,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        repetition_penalty=message.repetition_penalty,
        max_tokens=message.max_tokens,
        min_tokens=message.min_tokens,
        stop_token_ids=tuple(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
        logit_bias=tuple(sorted(message.logit_bias.items())),
        allowed_token_ids=tuple(message.allowed_token_ids),
        logprobs=message.logprobs if message.HasField("logprobs") else None,
        prompt_logprobs=message.prompt_logprobs if message.HasField("prompt_logprobs") else None,
        grammar=_grammar_from_proto(message.grammar) if message.HasField("grammar") else None,
    )


def resumption_to_proto(resumption: Resumption) -> wnode_pb2.Resumption | None:
    """Encode how far a request has come, None as an unset field where it begins."""
    if resumption == FROM_THE_START:
        return None
    return wnode_pb2.Resumption(
        output_token_ids=resumption.output_token_ids,
        random_key=resumption.random_key,
        ranges=route_to_proto(resumption.route),
    )


def resumption_of(request: wnode_pb2.GenerateRequest) -> Resumption:
    """Decode how far a request has come."""
    if not request.HasField("resumption"):
        return FROM_THE_START
    told = request.resumption
    return Resumption(
        tuple(told.output_token_ids),
        told.random_key if told.HasField("random_key") else None,
        route_from_proto(told.ranges),
    )


def logprobs_to_proto(logprobs: TokenLogprobs) -> wnode_pb2.TokenLogprobs:
    """Encode a token's log probabilities."""
    return wnode_pb2.TokenLogprobs(
        logprob=logprobs.logprob,
        top_token_ids=[token for token, _ in logprobs.top],
        top_logprobs=[value for _, value in logprobs.top],
    )


def logprobs_from_proto(message: wnode_pb2.TokenLogprobs) -> TokenLogprobs:
    """Decode a token's log probabilities."""
    return TokenLogprobs(
        message.logprob, tuple(zip(message.top_token_ids, message.top_logprobs, strict=True))
    )


def _grammar_to_proto(grammar: Grammar) -> wnode_pb2.Grammar:
    return wnode_pb2.Grammar(kind=grammar.kind, text=grammar.text)


def _grammar_from_proto(message: wnode_pb2.Grammar) -> Grammar:
    try:
        kind = GrammarKind(message.kind)
    except ValueError:
        raise InvalidRequestError(
            f"unknown kind of grammar: {message.kind!r}", parameter="structured_outputs"
        ) from None
    return Grammar(kind, message.text)


def step_times_to_proto(times: StepTimes) -> wnode_pb2.StepTimes:
    """Encode where the time of a step goes."""
    return wnode_pb2.StepTimes(
        rows=times.rows,
        step_seconds=times.step_s,
        projection_seconds=times.projection_s,
        attention_seconds=times.attention_s,
        post_attention_seconds=times.post_attention_s,
        overhead_seconds=times.overhead_s,
    )


def step_times_from_proto(message: wnode_pb2.StepTimes) -> StepTimes:
    """Decode where the time of a step goes."""
    return StepTimes(
        rows=message.rows,
        step_s=message.step_seconds,
        projection_s=message.projection_seconds,
        attention_s=message.attention_seconds,
        post_attention_s=message.post_attention_seconds,
        overhead_s=message.overhead_seconds,
    )
