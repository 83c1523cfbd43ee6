from kernelflume.rpc.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WatchTopologyRequest(_message.Message):
    __slots__ = ("interval_seconds",)
    INTERVAL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    interval_seconds: float
    def __init__(self, interval_seconds: _Optional[float] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("operation_id", "node_ids", "deadline_seconds", "deadline_covers_drain")
    OPERATION_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_IDS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_COVERS_DRAIN_FIELD_NUMBER: _ClassVar[int]
    operation_id: str
    node_ids: _containers.RepeatedScalarFieldContainer[str]
    deadline_seconds: float
    deadline_covers_drain: bool
    def __init__(self, operation_id: _Optional[str] = ..., node_ids: _Optional[_Iterable[str]] = ..., deadline_seconds: _Optional[float] = ..., deadline_covers_drain: _Optional[bool] = ...) -> None: ...

class GetPolicyRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SetPolicyRequest(_message.Message):
    __slots__ = ("yaml",)
    YAML_FIELD_NUMBER: _ClassVar[int]
    yaml: str
    def __init__(self, yaml: _Optional[str] = ...) -> None: ...

class PauseAutomaticScalingRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResumeAutomaticScalingRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Policy(_message.Message):
    __slots__ = ("yaml", "origin", "mode")
    YAML_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    yaml: str
    origin: str
    mode: str
    def __init__(self, yaml: _Optional[str] = ..., origin: _Optional[str] = ..., mode: _Optional[str] = ...) -> None: ...

class GetTopologyRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Topology(_message.Message):
    __slots__ = ("epoch", "attention_nodes", "weight_nodes", "sequences", "target_attention_nodes", "operation", "scaling_mode", "pool_fill_seconds", "decisions")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_NODES_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_NODES_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    TARGET_ATTENTION_NODES_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    SCALING_MODE_FIELD_NUMBER: _ClassVar[int]
    POOL_FILL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    attention_nodes: _containers.RepeatedCompositeFieldContainer[AttentionNodeStatus]
    weight_nodes: _containers.RepeatedCompositeFieldContainer[WeightNodeStatus]
    sequences: _containers.RepeatedCompositeFieldContainer[SequenceRouteStatus]
    target_attention_nodes: int
    operation: Operation
    scaling_mode: str
    pool_fill_seconds: float
    decisions: _containers.RepeatedCompositeFieldContainer[ScalingDecision]
    def __init__(self, epoch: _Optional[int] = ..., attention_nodes: _Optional[_Iterable[_Union[AttentionNodeStatus, _Mapping]]] = ..., weight_nodes: _Optional[_Iterable[_Union[WeightNodeStatus, _Mapping]]] = ..., sequences: _Optional[_Iterable[_Union[SequenceRouteStatus, _Mapping]]] = ..., target_attention_nodes: _Optional[int] = ..., operation: _Optional[_Union[Operation, _Mapping]] = ..., scaling_mode: _Optional[str] = ..., pool_fill_seconds: _Optional[float] = ..., decisions: _Optional[_Iterable[_Union[ScalingDecision, _Mapping]]] = ...) -> None: ...

class ScalingDecision(_message.Message):
    __slots__ = ("time", "action", "reason", "target_attention_nodes", "active_attention_nodes")
    TIME_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TARGET_ATTENTION_NODES_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_ATTENTION_NODES_FIELD_NUMBER: _ClassVar[int]
    time: str
    action: str
    reason: str
    target_attention_nodes: int
    active_attention_nodes: int
    def __init__(self, time: _Optional[str] = ..., action: _Optional[str] = ..., reason: _Optional[str] = ..., target_attention_nodes: _Optional[int] = ..., active_attention_nodes: _Optional[int] = ...) -> None: ...

class AttentionNodeStatus(_message.Message):
    __slots__ = ("node_id", "incarnation", "address", "state", "capacity_tokens", "used_tokens", "kv_bytes_per_token", "num_sequences", "alive", "threshold_tokens", "fill_seconds", "num_tails", "cached_tokens", "shared_tokens", "pinned_tokens")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_TOKENS_FIELD_NUMBER: _ClassVar[int]
    USED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KV_BYTES_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    NUM_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FILL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    NUM_TAILS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SHARED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PINNED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    incarnation: str
    address: str
    state: str
    capacity_tokens: int
    used_tokens: int
    kv_bytes_per_token: int
    num_sequences: int
    alive: bool
    threshold_tokens: int
    fill_seconds: float
    num_tails: int
    cached_tokens: int
    shared_tokens: int
    pinned_tokens: int
    def __init__(self, node_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., address: _Optional[str] = ..., state: _Optional[str] = ..., capacity_tokens: _Optional[int] = ..., used_tokens: _Optional[int] = ..., kv_bytes_per_token: _Optional[int] = ..., num_sequences: _Optional[int] = ..., alive: _Optional[bool] = ..., threshold_tokens: _Optional[int] = ..., fill_seconds: _Optional[float] = ..., num_tails: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., shared_tokens: _Optional[int] = ..., pinned_tokens: _Optional[int] = ...) -> None: ...

class WeightNodeStatus(_message.Message):
    __slots__ = ("node_id", "incarnation", "address", "adopted_epoch", "num_requests_running", "num_requests_waiting", "decode_step_seconds", "waiting_tokens", "role")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ADOPTED_EPOCH_FIELD_NUMBER: _ClassVar[int]
    NUM_REQUESTS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_REQUESTS_WAITING_FIELD_NUMBER: _ClassVar[int]
    DECODE_STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WAITING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    incarnation: str
    address: str
    adopted_epoch: int
    num_requests_running: int
    num_requests_waiting: int
    decode_step_seconds: float
    waiting_tokens: int
    role: str
    def __init__(self, node_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., address: _Optional[str] = ..., adopted_epoch: _Optional[int] = ..., num_requests_running: _Optional[int] = ..., num_requests_waiting: _Optional[int] = ..., decode_step_seconds: _Optional[float] = ..., waiting_tokens: _Optional[int] = ..., role: _Optional[str] = ...) -> None: ...

class SequenceRouteStatus(_message.Message):
    __slots__ = ("weight_node", "sequence_id", "ranges")
    WEIGHT_NODE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    weight_node: str
    sequence_id: int
    ranges: _containers.RepeatedCompositeFieldContainer[_common_pb2.OwnedRange]
    def __init__(self, weight_node: _Optional[str] = ..., sequence_id: _Optional[int] = ..., ranges: _Optional[_Iterable[_Union[_common_pb2.OwnedRange, _Mapping]]] = ...) -> None: ...

class SetTargetRequest(_message.Message):
    __slots__ = ("operation_id", "attention_nodes", "deadline_seconds", "deadline_covers_drain")
    OPERATION_ID_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_NODES_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_COVERS_DRAIN_FIELD_NUMBER: _ClassVar[int]
    operation_id: str
    attention_nodes: int
    deadline_seconds: float
    deadline_covers_drain: bool
    def __init__(self, operation_id: _Optional[str] = ..., attention_nodes: _Optional[int] = ..., deadline_seconds: _Optional[float] = ..., deadline_covers_drain: _Optional[bool] = ...) -> None: ...

class GetOperationRequest(_message.Message):
    __slots__ = ("operation_id",)
    OPERATION_ID_FIELD_NUMBER: _ClassVar[int]
    operation_id: str
    def __init__(self, operation_id: _Optional[str] = ...) -> None: ...

class Operation(_message.Message):
    __slots__ = ("operation_id", "target_attention_nodes", "initial_attention_nodes", "phase", "result", "reason", "history", "node_ids", "origin", "cause")
    OPERATION_ID_FIELD_NUMBER: _ClassVar[int]
    TARGET_ATTENTION_NODES_FIELD_NUMBER: _ClassVar[int]
    INITIAL_ATTENTION_NODES_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    NODE_IDS_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    operation_id: str
    target_attention_nodes: int
    initial_attention_nodes: int
    phase: str
    result: str
    reason: str
    history: _containers.RepeatedCompositeFieldContainer[OperationPhase]
    node_ids: _containers.RepeatedScalarFieldContainer[str]
    origin: str
    cause: str
    def __init__(self, operation_id: _Optional[str] = ..., target_attention_nodes: _Optional[int] = ..., initial_attention_nodes: _Optional[int] = ..., phase: _Optional[str] = ..., result: _Optional[str] = ..., reason: _Optional[str] = ..., history: _Optional[_Iterable[_Union[OperationPhase, _Mapping]]] = ..., node_ids: _Optional[_Iterable[str]] = ..., origin: _Optional[str] = ..., cause: _Optional[str] = ...) -> None: ...

class OperationPhase(_message.Message):
    __slots__ = ("phase", "seconds")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    phase: str
    seconds: float
    def __init__(self, phase: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...
