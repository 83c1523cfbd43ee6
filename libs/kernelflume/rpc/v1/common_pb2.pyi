from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class OwnedRange(_message.Message):
    __slots__ = ("node_id", "start", "end")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    start: int
    end: int
    def __init__(self, node_id: _Optional[str] = ..., start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class KvGeometry(_message.Message):
    __slots__ = ("model_id", "model_revision", "num_layers", "num_query_heads", "num_kv_heads", "head_dim", "dtype", "kv_dtype")
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_REVISION_FIELD_NUMBER: _ClassVar[int]
    NUM_LAYERS_FIELD_NUMBER: _ClassVar[int]
    NUM_QUERY_HEADS_FIELD_NUMBER: _ClassVar[int]
    NUM_KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    HEAD_DIM_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    KV_DTYPE_FIELD_NUMBER: _ClassVar[int]
    model_id: str
    model_revision: str
    num_layers: int
    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    kv_dtype: str
    def __init__(self, model_id: _Optional[str] = ..., model_revision: _Optional[str] = ..., num_layers: _Optional[int] = ..., num_query_heads: _Optional[int] = ..., num_kv_heads: _Optional[int] = ..., head_dim: _Optional[int] = ..., dtype: _Optional[str] = ..., kv_dtype: _Optional[str] = ...) -> None: ...

class Handshake(_message.Message):
    __slots__ = ("node_name", "geometry", "transport", "protocol_version", "layout_id")
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    GEOMETRY_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_ID_FIELD_NUMBER: _ClassVar[int]
    node_name: str
    geometry: KvGeometry
    transport: str
    protocol_version: int
    layout_id: str
    def __init__(self, node_name: _Optional[str] = ..., geometry: _Optional[_Union[KvGeometry, _Mapping]] = ..., transport: _Optional[str] = ..., protocol_version: _Optional[int] = ..., layout_id: _Optional[str] = ...) -> None: ...

class MemoryRegion(_message.Message):
    __slots__ = ("address", "num_bytes", "kind", "device")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    address: int
    num_bytes: int
    kind: str
    device: int
    def __init__(self, address: _Optional[int] = ..., num_bytes: _Optional[int] = ..., kind: _Optional[str] = ..., device: _Optional[int] = ...) -> None: ...
