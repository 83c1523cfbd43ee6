from kernelflume.rpc.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListPagesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PagesPart(_message.Message):
    __slots__ = ("page_tokens", "num_holders", "cached_pages", "free_pages", "sequences", "pinned_pages", "max_pinned_pages")
    PAGE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_HOLDERS_FIELD_NUMBER: _ClassVar[int]
    CACHED_PAGES_FIELD_NUMBER: _ClassVar[int]
    FREE_PAGES_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    PINNED_PAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_PINNED_PAGES_FIELD_NUMBER: _ClassVar[int]
    page_tokens: int
    num_holders: _containers.RepeatedScalarFieldContainer[int]
    cached_pages: _containers.RepeatedScalarFieldContainer[int]
    free_pages: _containers.RepeatedScalarFieldContainer[int]
    sequences: _containers.RepeatedCompositeFieldContainer[SequencePages]
    pinned_pages: _containers.RepeatedScalarFieldContainer[int]
    max_pinned_pages: int
    def __init__(self, page_tokens: _Optional[int] = ..., num_holders: _Optional[_Iterable[int]] = ..., cached_pages: _Optional[_Iterable[int]] = ..., free_pages: _Optional[_Iterable[int]] = ..., sequences: _Optional[_Iterable[_Union[SequencePages, _Mapping]]] = ..., pinned_pages: _Optional[_Iterable[int]] = ..., max_pinned_pages: _Optional[int] = ...) -> None: ...

class SequencePages(_message.Message):
    __slots__ = ("weight_node", "sequence_id", "ranges", "pages")
    WEIGHT_NODE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    weight_node: str
    sequence_id: int
    ranges: _containers.RepeatedCompositeFieldContainer[TokenSpan]
    pages: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, weight_node: _Optional[str] = ..., sequence_id: _Optional[int] = ..., ranges: _Optional[_Iterable[_Union[TokenSpan, _Mapping]]] = ..., pages: _Optional[_Iterable[int]] = ...) -> None: ...

class TokenSpan(_message.Message):
    __slots__ = ("start", "end")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class ConnectRequest(_message.Message):
    __slots__ = ("handshake", "transport_metadata", "limits", "partial_regions", "doorbell_address", "attention_node", "device_lanes")
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_METADATA_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_REGIONS_FIELD_NUMBER: _ClassVar[int]
    DOORBELL_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_NODE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_LANES_FIELD_NUMBER: _ClassVar[int]
    handshake: _common_pb2.Handshake
    transport_metadata: bytes
    limits: LaneLimits
    partial_regions: _containers.RepeatedCompositeFieldContainer[_common_pb2.MemoryRegion]
    doorbell_address: str
    attention_node: str
    device_lanes: DeviceLanes
    def __init__(self, handshake: _Optional[_Union[_common_pb2.Handshake, _Mapping]] = ..., transport_metadata: _Optional[bytes] = ..., limits: _Optional[_Union[LaneLimits, _Mapping]] = ..., partial_regions: _Optional[_Iterable[_Union[_common_pb2.MemoryRegion, _Mapping]]] = ..., doorbell_address: _Optional[str] = ..., attention_node: _Optional[str] = ..., device_lanes: _Optional[_Union[DeviceLanes, _Mapping]] = ...) -> None: ...

class DeviceLanes(_message.Message):
    __slots__ = ("max_rows", "query_first", "lanes", "path")
    MAX_ROWS_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIRST_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    max_rows: int
    query_first: str
    lanes: _containers.RepeatedCompositeFieldContainer[DeviceLane]
    path: str
    def __init__(self, max_rows: _Optional[int] = ..., query_first: _Optional[str] = ..., lanes: _Optional[_Iterable[_Union[DeviceLane, _Mapping]]] = ..., path: _Optional[str] = ...) -> None: ...

class DeviceLane(_message.Message):
    __slots__ = ("regions",)
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    regions: _containers.RepeatedCompositeFieldContainer[_common_pb2.MemoryRegion]
    def __init__(self, regions: _Optional[_Iterable[_Union[_common_pb2.MemoryRegion, _Mapping]]] = ...) -> None: ...

class LaneLimits(_message.Message):
    __slots__ = ("num_lanes", "max_rows")
    NUM_LANES_FIELD_NUMBER: _ClassVar[int]
    MAX_ROWS_FIELD_NUMBER: _ClassVar[int]
    num_lanes: int
    max_rows: int
    def __init__(self, num_lanes: _Optional[int] = ..., max_rows: _Optional[int] = ...) -> None: ...

class ConnectResponse(_message.Message):
    __slots__ = ("handshake", "transport_metadata", "query_regions", "append_regions", "page_tokens", "num_pages", "num_free_pages", "doorbell_address", "device_lanes")
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_METADATA_FIELD_NUMBER: _ClassVar[int]
    QUERY_REGIONS_FIELD_NUMBER: _ClassVar[int]
    APPEND_REGIONS_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_PAGES_FIELD_NUMBER: _ClassVar[int]
    NUM_FREE_PAGES_FIELD_NUMBER: _ClassVar[int]
    DOORBELL_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_LANES_FIELD_NUMBER: _ClassVar[int]
    handshake: _common_pb2.Handshake
    transport_metadata: bytes
    query_regions: _containers.RepeatedCompositeFieldContainer[_common_pb2.MemoryRegion]
    append_regions: _containers.RepeatedCompositeFieldContainer[_common_pb2.MemoryRegion]
    page_tokens: int
    num_pages: int
    num_free_pages: int
    doorbell_address: str
    device_lanes: DeviceLanes
    def __init__(self, handshake: _Optional[_Union[_common_pb2.Handshake, _Mapping]] = ..., transport_metadata: _Optional[bytes] = ..., query_regions: _Optional[_Iterable[_Union[_common_pb2.MemoryRegion, _Mapping]]] = ..., append_regions: _Optional[_Iterable[_Union[_common_pb2.MemoryRegion, _Mapping]]] = ..., page_tokens: _Optional[int] = ..., num_pages: _Optional[int] = ..., num_free_pages: _Optional[int] = ..., doorbell_address: _Optional[str] = ..., device_lanes: _Optional[_Union[DeviceLanes, _Mapping]] = ...) -> None: ...

class DisconnectRequest(_message.Message):
    __slots__ = ("weight_node",)
    WEIGHT_NODE_FIELD_NUMBER: _ClassVar[int]
    weight_node: str
    def __init__(self, weight_node: _Optional[str] = ...) -> None: ...

class DisconnectResponse(_message.Message):
    __slots__ = ("num_sequences_freed",)
    NUM_SEQUENCES_FREED_FIELD_NUMBER: _ClassVar[int]
    num_sequences_freed: int
    def __init__(self, num_sequences_freed: _Optional[int] = ...) -> None: ...

class GetAttentionStatisticsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AttentionStatistics(_message.Message):
    __slots__ = ("node_id", "incarnation", "page_tokens", "num_pages", "num_free_pages", "num_tokens", "kv_bytes", "buffer_bytes", "resident_bytes", "queries_served", "tokens_appended", "links", "scan_bytes_per_second", "num_cached_pages", "num_cached_tokens", "tokens_found", "tokens_shared", "pages_evicted", "pages_expired", "num_pinned_tokens", "max_pinned_tokens")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_PAGES_FIELD_NUMBER: _ClassVar[int]
    NUM_FREE_PAGES_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KV_BYTES_FIELD_NUMBER: _ClassVar[int]
    BUFFER_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    QUERIES_SERVED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_APPENDED_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    SCAN_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_PAGES_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FOUND_FIELD_NUMBER: _ClassVar[int]
    TOKENS_SHARED_FIELD_NUMBER: _ClassVar[int]
    PAGES_EVICTED_FIELD_NUMBER: _ClassVar[int]
    PAGES_EXPIRED_FIELD_NUMBER: _ClassVar[int]
    NUM_PINNED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_PINNED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    incarnation: str
    page_tokens: int
    num_pages: int
    num_free_pages: int
    num_tokens: int
    kv_bytes: int
    buffer_bytes: int
    resident_bytes: int
    queries_served: int
    tokens_appended: int
    links: _containers.RepeatedCompositeFieldContainer[AttentionStatisticsLink]
    scan_bytes_per_second: float
    num_cached_pages: int
    num_cached_tokens: int
    tokens_found: int
    tokens_shared: int
    pages_evicted: int
    pages_expired: int
    num_pinned_tokens: int
    max_pinned_tokens: int
    def __init__(self, node_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., page_tokens: _Optional[int] = ..., num_pages: _Optional[int] = ..., num_free_pages: _Optional[int] = ..., num_tokens: _Optional[int] = ..., kv_bytes: _Optional[int] = ..., buffer_bytes: _Optional[int] = ..., resident_bytes: _Optional[int] = ..., queries_served: _Optional[int] = ..., tokens_appended: _Optional[int] = ..., links: _Optional[_Iterable[_Union[AttentionStatisticsLink, _Mapping]]] = ..., scan_bytes_per_second: _Optional[float] = ..., num_cached_pages: _Optional[int] = ..., num_cached_tokens: _Optional[int] = ..., tokens_found: _Optional[int] = ..., tokens_shared: _Optional[int] = ..., pages_evicted: _Optional[int] = ..., pages_expired: _Optional[int] = ..., num_pinned_tokens: _Optional[int] = ..., max_pinned_tokens: _Optional[int] = ...) -> None: ...

class AttentionStatisticsLink(_message.Message):
    __slots__ = ("weight_node", "num_sequences", "num_tokens")
    WEIGHT_NODE_FIELD_NUMBER: _ClassVar[int]
    NUM_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    weight_node: str
    num_sequences: int
    num_tokens: int
    def __init__(self, weight_node: _Optional[str] = ..., num_sequences: _Optional[int] = ..., num_tokens: _Optional[int] = ...) -> None: ...
