from kernelflume.rpc.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SamplingParameters(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty", "max_tokens", "min_tokens", "stop_token_ids", "ignore_eos", "logit_bias", "allowed_token_ids", "logprobs", "prompt_logprobs", "grammar")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    max_tokens: int
    min_tokens: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    logit_bias: _containers.ScalarMap[int, float]
    allowed_token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: int
    prompt_logprobs: int
    grammar: Grammar
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., seed: _Optional[int] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., max_tokens: _Optional[int] = ..., min_tokens: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: _Optional[bool] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., allowed_token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[int] = ..., prompt_logprobs: _Optional[int] = ..., grammar: _Optional[_Union[Grammar, _Mapping]] = ...) -> None: ...

class Grammar(_message.Message):
    __slots__ = ("kind", "text")
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    kind: str
    text: str
    def __init__(self, kind: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class TokenLogprobs(_message.Message):
    __slots__ = ("logprob", "top_token_ids", "top_logprobs")
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    logprob: float
    top_token_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, logprob: _Optional[float] = ..., top_token_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("request_id", "prompt_token_ids", "sampling", "cache_salt", "resumption", "cache_retention", "tenant")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    RESUMPTION_FIELD_NUMBER: _ClassVar[int]
    CACHE_RETENTION_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: SamplingParameters
    cache_salt: str
    resumption: Resumption
    cache_retention: str
    tenant: str
    def __init__(self, request_id: _Optional[str] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[SamplingParameters, _Mapping]] = ..., cache_salt: _Optional[str] = ..., resumption: _Optional[_Union[Resumption, _Mapping]] = ..., cache_retention: _Optional[str] = ..., tenant: _Optional[str] = ...) -> None: ...

class Resumption(_message.Message):
    __slots__ = ("output_token_ids", "random_key", "ranges")
    OUTPUT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    RANDOM_KEY_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    output_token_ids: _containers.RepeatedScalarFieldContainer[int]
    random_key: int
    ranges: _containers.RepeatedCompositeFieldContainer[_common_pb2.OwnedRange]
    def __init__(self, output_token_ids: _Optional[_Iterable[int]] = ..., random_key: _Optional[int] = ..., ranges: _Optional[_Iterable[_Union[_common_pb2.OwnedRange, _Mapping]]] = ...) -> None: ...

class GenerateEvent(_message.Message):
    __slots__ = ("token_ids", "finish_reason", "num_cached_tokens", "stop_token_id", "logprobs", "prompt_logprobs", "random_key", "held")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    RANDOM_KEY_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    finish_reason: str
    num_cached_tokens: int
    stop_token_id: int
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    random_key: int
    held: Held
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., finish_reason: _Optional[str] = ..., num_cached_tokens: _Optional[int] = ..., stop_token_id: _Optional[int] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ..., random_key: _Optional[int] = ..., held: _Optional[_Union[Held, _Mapping]] = ...) -> None: ...

class Held(_message.Message):
    __slots__ = ("ranges",)
    RANGES_FIELD_NUMBER: _ClassVar[int]
    ranges: _containers.RepeatedCompositeFieldContainer[_common_pb2.OwnedRange]
    def __init__(self, ranges: _Optional[_Iterable[_Union[_common_pb2.OwnedRange, _Mapping]]] = ...) -> None: ...

class AttachRequest(_message.Message):
    __slots__ = ("submission", "cancelled", "hand_over", "go_on")
    SUBMISSION_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    HAND_OVER_FIELD_NUMBER: _ClassVar[int]
    GO_ON_FIELD_NUMBER: _ClassVar[int]
    submission: Submission
    cancelled: int
    hand_over: int
    go_on: int
    def __init__(self, submission: _Optional[_Union[Submission, _Mapping]] = ..., cancelled: _Optional[int] = ..., hand_over: _Optional[int] = ..., go_on: _Optional[int] = ...) -> None: ...

class Submission(_message.Message):
    __slots__ = ("number", "request", "trace_context", "timeout_seconds", "hand_over")
    class TraceContextEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    TRACE_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    HAND_OVER_FIELD_NUMBER: _ClassVar[int]
    number: int
    request: GenerateRequest
    trace_context: _containers.ScalarMap[str, str]
    timeout_seconds: float
    hand_over: bool
    def __init__(self, number: _Optional[int] = ..., request: _Optional[_Union[GenerateRequest, _Mapping]] = ..., trace_context: _Optional[_Mapping[str, str]] = ..., timeout_seconds: _Optional[float] = ..., hand_over: _Optional[bool] = ...) -> None: ...

class AttachReply(_message.Message):
    __slots__ = ("numbers", "token_ids", "events", "draining")
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    numbers: _containers.RepeatedScalarFieldContainer[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    events: _containers.RepeatedCompositeFieldContainer[RequestEvent]
    draining: bool
    def __init__(self, numbers: _Optional[_Iterable[int]] = ..., token_ids: _Optional[_Iterable[int]] = ..., events: _Optional[_Iterable[_Union[RequestEvent, _Mapping]]] = ..., draining: _Optional[bool] = ...) -> None: ...

class RequestEvent(_message.Message):
    __slots__ = ("number", "event", "failure", "asked_away")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    ASKED_AWAY_FIELD_NUMBER: _ClassVar[int]
    number: int
    event: GenerateEvent
    failure: RequestFailure
    asked_away: bool
    def __init__(self, number: _Optional[int] = ..., event: _Optional[_Union[GenerateEvent, _Mapping]] = ..., failure: _Optional[_Union[RequestFailure, _Mapping]] = ..., asked_away: _Optional[bool] = ...) -> None: ...

class RequestFailure(_message.Message):
    __slots__ = ("code", "details", "trailers")
    class TrailersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CODE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    TRAILERS_FIELD_NUMBER: _ClassVar[int]
    code: int
    details: str
    trailers: _containers.ScalarMap[str, str]
    def __init__(self, code: _Optional[int] = ..., details: _Optional[str] = ..., trailers: _Optional[_Mapping[str, str]] = ...) -> None: ...

class GetLoadRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WeightNodeLoad(_message.Message):
    __slots__ = ("num_requests_running", "num_requests_waiting", "max_num_waiting", "num_tokens", "adopted_epoch", "prepared_nodes", "num_steps", "step_times", "waiting_tokens", "block_tokens")
    NUM_REQUESTS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_REQUESTS_WAITING_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ADOPTED_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PREPARED_NODES_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    STEP_TIMES_FIELD_NUMBER: _ClassVar[int]
    WAITING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    num_requests_running: int
    num_requests_waiting: int
    max_num_waiting: int
    num_tokens: int
    adopted_epoch: int
    prepared_nodes: _containers.RepeatedScalarFieldContainer[str]
    num_steps: int
    step_times: StepTimes
    waiting_tokens: int
    block_tokens: int
    def __init__(self, num_requests_running: _Optional[int] = ..., num_requests_waiting: _Optional[int] = ..., max_num_waiting: _Optional[int] = ..., num_tokens: _Optional[int] = ..., adopted_epoch: _Optional[int] = ..., prepared_nodes: _Optional[_Iterable[str]] = ..., num_steps: _Optional[int] = ..., step_times: _Optional[_Union[StepTimes, _Mapping]] = ..., waiting_tokens: _Optional[int] = ..., block_tokens: _Optional[int] = ...) -> None: ...

class StepTimes(_message.Message):
    __slots__ = ("rows", "step_seconds", "projection_seconds", "attention_seconds", "post_attention_seconds", "overhead_seconds")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PROJECTION_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_SECONDS_FIELD_NUMBER: _ClassVar[int]
    POST_ATTENTION_SECONDS_FIELD_NUMBER: _ClassVar[int]
    OVERHEAD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    rows: int
    step_seconds: float
    projection_seconds: float
    attention_seconds: float
    post_attention_seconds: float
    overhead_seconds: float
    def __init__(self, rows: _Optional[int] = ..., step_seconds: _Optional[float] = ..., projection_seconds: _Optional[float] = ..., attention_seconds: _Optional[float] = ..., post_attention_seconds: _Optional[float] = ..., overhead_seconds: _Optional[float] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ModelCard(_message.Message):
    __slots__ = ("geometry", "max_model_len", "vocab_size", "eos_token_ids", "node_id", "role", "max_num_seqs")
    GEOMETRY_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    geometry: _common_pb2.KvGeometry
    max_model_len: int
    vocab_size: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    node_id: str
    role: str
    max_num_seqs: int
    def __init__(self, geometry: _Optional[_Union[_common_pb2.KvGeometry, _Mapping]] = ..., max_model_len: _Optional[int] = ..., vocab_size: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., node_id: _Optional[str] = ..., role: _Optional[str] = ..., max_num_seqs: _Optional[int] = ...) -> None: ...

class PrepareEndpointRequest(_message.Message):
    __slots__ = ("node_id", "incarnation", "address")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    incarnation: str
    address: str
    def __init__(self, node_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class PrepareEndpointResponse(_message.Message):
    __slots__ = ("connect_seconds", "warm_seconds")
    CONNECT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WARM_SECONDS_FIELD_NUMBER: _ClassVar[int]
    connect_seconds: float
    warm_seconds: float
    def __init__(self, connect_seconds: _Optional[float] = ..., warm_seconds: _Optional[float] = ...) -> None: ...

class ReleaseEndpointRequest(_message.Message):
    __slots__ = ("node_id", "incarnation")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    incarnation: str
    def __init__(self, node_id: _Optional[str] = ..., incarnation: _Optional[str] = ...) -> None: ...

class ReleaseEndpointResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MoveRequestsRequest(_message.Message):
    __slots__ = ("max_requests", "draining")
    MAX_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    max_requests: int
    draining: bool
    def __init__(self, max_requests: _Optional[int] = ..., draining: _Optional[bool] = ...) -> None: ...

class MoveRequestsResponse(_message.Message):
    __slots__ = ("num_asked",)
    NUM_ASKED_FIELD_NUMBER: _ClassVar[int]
    num_asked: int
    def __init__(self, num_asked: _Optional[int] = ...) -> None: ...

class PrepareGrammarRequest(_message.Message):
    __slots__ = ("sampling", "tenant")
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    sampling: SamplingParameters
    tenant: str
    def __init__(self, sampling: _Optional[_Union[SamplingParameters, _Mapping]] = ..., tenant: _Optional[str] = ...) -> None: ...

class PrepareGrammarResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListSequencesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListSequencesResponse(_message.Message):
    __slots__ = ("sequences",)
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    sequences: _containers.RepeatedCompositeFieldContainer[SequenceStatus]
    def __init__(self, sequences: _Optional[_Iterable[_Union[SequenceStatus, _Mapping]]] = ...) -> None: ...

class SequenceStatus(_message.Message):
    __slots__ = ("sequence_id", "request_id", "state", "num_prompt_tokens", "num_output_tokens", "ranges")
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    sequence_id: int
    request_id: str
    state: str
    num_prompt_tokens: int
    num_output_tokens: int
    ranges: _containers.RepeatedCompositeFieldContainer[_common_pb2.OwnedRange]
    def __init__(self, sequence_id: _Optional[int] = ..., request_id: _Optional[str] = ..., state: _Optional[str] = ..., num_prompt_tokens: _Optional[int] = ..., num_output_tokens: _Optional[int] = ..., ranges: _Optional[_Iterable[_Union[_common_pb2.OwnedRange, _Mapping]]] = ...) -> None: ...
