// The exchange of one layer between a weight node and its attention nodes, started by the GPUs alone
// (paper sections 4.1 and 5.1; docs/adr/0011-gpu-data-plane.md).
//
// A kernel of the weight node's graph puts queries into the attention nodes' registered memory through NIXL
// memory views and raises a counter there; the attention node's graph waits for that counter in its own
// memory, attends, and puts outputs and lse back in the same way. Who takes part is read from tables in device
// memory, so that a routing change between two steps changes data and never a graph.
//
// On the host path the CPUs post between the same kernels: pack_* gather what they post, and the stream, not the
// merging kernel, waits (docs/adr/0011-gpu-data-plane.md).
//
// Counters only rise, and each side knows what the next value is, so none is ever reset. Every wait has a
// deadline: a wait that fails writes a code to `status`, and all later waits give up at once.
//
// Compiled for one element type and head width: -DKF_DTYPE=0|1|2 (float32, float16, bfloat16) -DKF_HEAD_DIM=n.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>
#include <stdio.h>

#include <ucp/api/device/ucp_device_impl.h>

#if KF_DTYPE == 0
typedef float element;
#elif KF_DTYPE == 1
typedef __half element;
#else
typedef __nv_bfloat16 element;
#endif

namespace {

constexpr int kMaxNodes = 16;
constexpr int kWarp = 32;
constexpr int kLaneWidth = KF_HEAD_DIM / kWarp;  // elements of a head that one thread of a warp holds
constexpr int kSpinsPerLook = 64;                // polls between two looks at clock and status

// Elements of every remote view, in the order in which the host registers them (cuda/exchange.py).
enum AttentionElement { kQueries = 0, kAppends = 1, kAttentionCounters = 2 };
enum WeightElement { kPartials = 0, kWeightCounters = 1 };
// Counters of a lane, each on a cache line of its own.
constexpr size_t kQueryCounter = 0;
constexpr size_t kAppendCounter = 128;

enum Failure : unsigned {
  kNone = 0,
  kPartialTimeout = 1,  // with the node's place in the third byte, the lane in the fourth
  kQueryTimeout = 2,
  kAppendTimeout = 3,
};

// What went wrong first, in device memory: waiting threads look at it often, and a look at host memory crosses the
// bus (measured: 256 waiting blocks that look there cost each layer a quarter of a millisecond).
struct Status {
  unsigned failure;
  unsigned reserved;
  unsigned* host;  // a copy for the host, written once
};

// One attention node as one lane of the weight node sees it (cuda/exchange.py: NODE_ROUTE).
struct NodeRoute {
  ucp_device_remote_mem_list_h remote;
  const element* partial_out;            // [max_rows, heads, head dim], arrives here
  const float* partial_lse;              // [max_rows, heads], natural logarithm
  const uint64_t* partial_counter;       // null on the host path, where the stream has waited
  uint64_t partials_before;              // its value before this step's first partial
  uint64_t append_offset;                // bytes: slot of this step's keys and values
  char* staged_queries;                  // host path: where rows are gathered for the CPU to post
  char* staged_keys_values;
  uint32_t num_query_rows;
  uint32_t num_kv_rows;
  uint32_t staged_kv_rows;               // rows from one layer to the next in staged_keys_values
  uint32_t reserved;
};

// One lane (microbatch) of the weight node: header, then three [kMaxNodes, max_rows] tables of int32.
struct LaneRoutes {
  uint32_t num_nodes;
  uint32_t num_rows;
  uint32_t max_rows;
  uint32_t lane;
  NodeRoute nodes[kMaxNodes];
  // query_rows[node][i]: row of the microbatch that is row i of the node's queries
  // slot_of_row[node][row]: the inverse, -1 where the node holds nothing of the row's sequence
  // kv_rows[node][i]: row of the microbatch that is row i of the node's keys and values
  __device__ const int32_t* table(int which, int node) const {
    return reinterpret_cast<const int32_t*>(this + 1) + (static_cast<size_t>(which) * kMaxNodes + node) * max_rows;
  }
};

// One lane as the attention node sees it (cuda/exchange.py: LANE_STATE).
struct LaneState {
  ucp_device_remote_mem_list_h remote;
  const uint64_t* query_counter;
  const uint64_t* append_counter;
  uint64_t queries_before;   // value before this step's first query
  uint64_t appends_before;   // value before the append that the next filing waits for
  uint32_t num_rows;         // query rows of this step
  uint32_t num_append_rows;  // rows of the append that is filed next
  uint32_t append_slot;      // where it arrives
  uint32_t reserved;
};

__device__ __forceinline__ uint64_t now_ns() {
  uint64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

// Wait until a counter reaches a value; false when it does not in time, or another wait failed before.
__device__ bool wait_for(const uint64_t* counter, uint64_t value, uint64_t timeout_ns, Status* status,
                         unsigned failure) {
  if (ucs_device_atomic64_read(counter) >= value) return true;
  const uint64_t started = now_ns();
  for (;;) {
    for (int spin = 0; spin < kSpinsPerLook; ++spin) {
      if (ucs_device_atomic64_read(counter) >= value) return true;
    }
    if (__ldcg(&status->failure) != kNone) return false;
    if (now_ns() - started > timeout_ns) {
      if (atomicCAS(&status->failure, kNone, failure) == kNone) *const_cast<volatile unsigned*>(status->host) = failure;
      return false;
    }
  }
}

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ void from_float(float& y, float x) { y = x; }
__device__ __forceinline__ void from_float(__half& y, float x) { y = __float2half_rn(x); }
__device__ __forceinline__ void from_float(__nv_bfloat16& y, float x) { y = __float2bfloat16_rn(x); }

struct alignas(sizeof(element) * (kLaneWidth & -kLaneWidth)) Piece {
  element values[kLaneWidth];
};

// Data that a peer wrote must come from L2, never from a line that L1 kept.
__device__ __forceinline__ void load_piece(float (&into)[kLaneWidth], const element* head) {
  const element* from = head + (threadIdx.x % kWarp) * kLaneWidth;
  Piece piece;
  constexpr int kBytes = sizeof(Piece);
  if constexpr (kBytes % 16 == 0) {
#pragma unroll
    for (int i = 0; i < kBytes / 16; ++i)
      reinterpret_cast<int4*>(&piece)[i] = __ldcg(reinterpret_cast<const int4*>(from) + i);
  } else if constexpr (kBytes % 8 == 0) {
#pragma unroll
    for (int i = 0; i < kBytes / 8; ++i)
      reinterpret_cast<int2*>(&piece)[i] = __ldcg(reinterpret_cast<const int2*>(from) + i);
  } else if constexpr (kBytes % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kBytes / 4; ++i)
      reinterpret_cast<int*>(&piece)[i] = __ldcg(reinterpret_cast<const int*>(from) + i);
  } else {
#pragma unroll
    for (int i = 0; i < kLaneWidth; ++i)
      reinterpret_cast<short*>(&piece)[i] = __ldcg(reinterpret_cast<const short*>(from) + i);
  }
#pragma unroll
  for (int i = 0; i < kLaneWidth; ++i) into[i] = to_float(piece.values[i]);
}

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int offset = kWarp / 2; offset; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

// All threads of the block copy one row; rows are multiples of 16 bytes and aligned so.
__device__ __forceinline__ void copy_row(char* into, const char* from, unsigned row_bytes) {
  for (unsigned i = threadIdx.x; i < row_bytes / sizeof(int4); i += blockDim.x)
    reinterpret_cast<int4*>(into)[i] = reinterpret_cast<const int4*>(from)[i];
}

// The last block that comes here raises the peer's counter, after the data of all blocks. By one thread of a block.
__device__ void raise_when_last(unsigned* arrived, ucp_device_remote_mem_list_h remote, unsigned counters, size_t offset) {
  if (atomicAdd(arrived, 1u) != gridDim.x - 1) return;
  *arrived = 0;
  __threadfence_system();
  ucp_device_counter_inc<UCS_DEVICE_LEVEL_THREAD>(1, remote, counters, offset, 0, UCP_DEVICE_FLAG_NODELAY, nullptr);
}

}  // namespace

// Weight node: put each row's query into every node that holds earlier tokens of it.
// Grid (blocks), which share the rows of all nodes. `queries`: view of [max_rows, heads, head dim].
// arrived: [kMaxNodes], zero.
extern "C" __global__ void put_queries(const LaneRoutes* routes, ucp_device_local_mem_list_h queries, unsigned row_bytes,
                                       unsigned* arrived) {
  const unsigned num_nodes = routes->num_nodes;
  unsigned before = 0;
  for (unsigned node = 0; node < num_nodes; ++node) {
    const NodeRoute& route = routes->nodes[node];
    const int32_t* rows = routes->table(0, node);
    for (unsigned i = (blockIdx.x + gridDim.x - before % gridDim.x) % gridDim.x; i < route.num_query_rows; i += gridDim.x) {
      ucp_device_put<UCS_DEVICE_LEVEL_BLOCK>(queries, 0, static_cast<size_t>(rows[i]) * row_bytes, route.remote, kQueries,
                                             static_cast<size_t>(i) * row_bytes, row_bytes, 0, UCP_DEVICE_FLAG_NODELAY,
                                             nullptr);
    }
    before += route.num_query_rows;
  }
  if (threadIdx.x || !before) return;
  __threadfence_system();
  for (unsigned node = 0; node < num_nodes; ++node) {
    const NodeRoute& route = routes->nodes[node];
    if (route.num_query_rows) raise_when_last(arrived + node, route.remote, kAttentionCounters, kQueryCounter);
  }
}

// Weight node: put keys and values of layers [first_layer, first_layer + num_layers) into the nodes that store them.
// Grid (blocks), which share the rows of all nodes. `rows`: view of [layers, max_rows, 2, KV heads, head dim]; the
// node's slot has the same shape. The node's append counter rises afterwards.
extern "C" __global__ void put_keys_values(const LaneRoutes* routes, ucp_device_local_mem_list_h rows, unsigned row_bytes,
                                           unsigned first_layer, unsigned num_layers, unsigned* arrived) {
  const unsigned num_nodes = routes->num_nodes;
  unsigned before = 0;
  for (unsigned node = 0; node < num_nodes; ++node) {
    const NodeRoute& route = routes->nodes[node];
    const unsigned num_rows = route.num_kv_rows;
    const int32_t* kv_rows = routes->table(2, node);
    for (unsigned i = (blockIdx.x + gridDim.x - before % gridDim.x) % gridDim.x; i < num_rows * num_layers; i += gridDim.x) {
      const size_t first = static_cast<size_t>(first_layer + i / num_rows) * routes->max_rows;
      const size_t row = i % num_rows;
      ucp_device_put<UCS_DEVICE_LEVEL_BLOCK>(rows, 0, (first + kv_rows[row]) * row_bytes, route.remote, kAppends,
                                             route.append_offset + (first + row) * row_bytes, row_bytes, 0,
                                             UCP_DEVICE_FLAG_NODELAY, nullptr);
    }
    before += num_rows * num_layers;
  }
  if (threadIdx.x || !before) return;
  __threadfence_system();
  for (unsigned node = 0; node < num_nodes; ++node) {
    const NodeRoute& route = routes->nodes[node];
    if (route.num_kv_rows) raise_when_last(arrived + node, route.remote, kAttentionCounters, kAppendCounter);
  }
}

// Weight node, host path: gather each node's queries into its staging, which the CPU posts.
// Grid (blocks), which share the rows of all nodes. queries: [max_rows, row].
extern "C" __global__ void pack_queries(const LaneRoutes* routes, const char* queries, unsigned row_bytes) {
  const unsigned num_nodes = routes->num_nodes;
  unsigned before = 0;
  for (unsigned node = 0; node < num_nodes; ++node) {
    const NodeRoute& route = routes->nodes[node];
    const int32_t* rows = routes->table(0, node);
    for (unsigned i = (blockIdx.x + gridDim.x - before % gridDim.x) % gridDim.x; i < route.num_query_rows; i += gridDim.x)
      copy_row(route.staged_queries + static_cast<size_t>(i) * row_bytes,
               queries + static_cast<size_t>(rows[i]) * row_bytes, row_bytes);
    before += route.num_query_rows;
  }
}

// Weight node, host path: gather keys and values of layers [first_layer, first_layer + num_layers) into the staging of
// the nodes that store them: [num_layers, staged_kv_rows, row]. Grid (blocks), which share the rows of all nodes.
// keys_values: [layers, max_rows, row].
extern "C" __global__ void pack_keys_values(const LaneRoutes* routes, const char* keys_values, unsigned row_bytes,
                                            unsigned first_layer, unsigned num_layers) {
  const unsigned num_nodes = routes->num_nodes;
  unsigned before = 0;
  for (unsigned node = 0; node < num_nodes; ++node) {
    const NodeRoute& route = routes->nodes[node];
    const unsigned num_rows = route.num_kv_rows;
    const int32_t* kv_rows = routes->table(2, node);
    for (unsigned i = (blockIdx.x + gridDim.x - before % gridDim.x) % gridDim.x; i < num_rows * num_layers; i += gridDim.x) {
      const size_t layer = i / num_rows, row = i % num_rows;
      copy_row(route.staged_keys_values + (layer * route.staged_kv_rows + row) * row_bytes,
               keys_values + ((first_layer + layer) * routes->max_rows + kv_rows[row]) * row_bytes, row_bytes);
    }
    before += num_rows * num_layers;
  }
}

// Weight node: attention of each row over everything, out of the row's own key and value (unless own == 0) and the
// nodes' partials of this layer, for which it waits. Grid (rows, heads / warps a block).
// query, out: [rows, heads, head dim]; keys_values: [rows, 2, KV heads, head dim].
extern "C" __global__ void merge_partials(const LaneRoutes* routes, const element* query, const element* keys_values,
                                          element* out, unsigned num_heads, unsigned num_kv_heads, float scale,
                                          unsigned own, unsigned layer, uint64_t timeout_ns, Status* status) {
  const unsigned row = blockIdx.x;
  const unsigned head = blockIdx.y * (blockDim.x / kWarp) + threadIdx.x / kWarp;
  const unsigned num_nodes = routes->num_nodes;
  const bool has_head = head < num_heads;

  float sum[kLaneWidth] = {};
  float highest = -INFINITY;
  float total = 0.f;
  if (own && has_head) {
    float mine[kLaneWidth], key[kLaneWidth];
    const unsigned kv_head = head / (num_heads / num_kv_heads);
    const element* kv = keys_values + (static_cast<size_t>(row) * 2 * num_kv_heads + kv_head) * KF_HEAD_DIM;
    load_piece(mine, query + (static_cast<size_t>(row) * num_heads + head) * KF_HEAD_DIM);
    load_piece(key, kv);
    load_piece(sum, kv + static_cast<size_t>(num_kv_heads) * KF_HEAD_DIM);
    float dot = 0.f;
#pragma unroll
    for (int i = 0; i < kLaneWidth; ++i) dot += mine[i] * key[i];
    highest = warp_sum(dot) * scale;
    total = 1.f;
  }

  if (row < routes->num_rows) {
    if (threadIdx.x < num_nodes && routes->table(1, threadIdx.x)[row] >= 0) {
      const NodeRoute& route = routes->nodes[threadIdx.x];
      if (route.partial_counter) wait_for(route.partial_counter, route.partials_before + layer + 1, timeout_ns, status,
               kPartialTimeout | threadIdx.x << 16 | routes->lane << 24);
    }
    __syncthreads();
    if (!has_head) return;
    for (unsigned node = 0; node < num_nodes; ++node) {
      const int32_t slot = routes->table(1, node)[row];
      if (slot < 0) continue;
      const NodeRoute& route = routes->nodes[node];
      const size_t at = static_cast<size_t>(slot) * num_heads + head;
      const float lse = __ldcg(route.partial_lse + at);
      if (lse == -INFINITY) continue;  // no token of this row is held there
      float theirs[kLaneWidth];
      load_piece(theirs, route.partial_out + at * KF_HEAD_DIM);
      const float top = fmaxf(highest, lse);
      const float keep = total > 0.f ? expf(highest - top) : 0.f;
      const float add = expf(lse - top);
#pragma unroll
      for (int i = 0; i < kLaneWidth; ++i) sum[i] = sum[i] * keep + theirs[i] * add;
      total = total * keep + add;
      highest = top;
    }
  } else if (!has_head) {
    return;
  }
  const float share = total > 0.f ? 1.f / total : 0.f;
  Piece piece;
#pragma unroll
  for (int i = 0; i < kLaneWidth; ++i) from_float(piece.values[i], sum[i] * share);
  reinterpret_cast<Piece*>(out + (static_cast<size_t>(row) * num_heads + head) * KF_HEAD_DIM)[threadIdx.x % kWarp] = piece;
}

// Weight node, end of a step: the counters' next values, so that a step with the same routes needs no upload.
extern "C" __global__ void advance_routes(LaneRoutes* routes, unsigned num_layers, unsigned num_appends,
                                          uint64_t slot_bytes) {
  const unsigned node = threadIdx.x;
  if (node >= routes->num_nodes) return;
  NodeRoute& route = routes->nodes[node];
  if (route.num_query_rows) route.partials_before += num_layers;
  if (route.num_kv_rows && num_appends) route.append_offset = slot_bytes - route.append_offset;  // of two slots
}

// Attention node: hold the stream until the queries of a layer are here, if any come.
extern "C" __global__ void wait_queries(const LaneState* lane, unsigned layer, uint64_t timeout_ns, Status* status) {
  if (lane->num_rows)
    wait_for(lane->query_counter, lane->queries_before + layer + 1, timeout_ns, status, kQueryTimeout);
}

// Attention node: hold the stream until an append is here; index counts from the step's first.
extern "C" __global__ void wait_append(const LaneState* lane, unsigned index, uint64_t timeout_ns, Status* status) {
  if (lane->num_append_rows)
    wait_for(lane->append_counter, lane->appends_before + index + 1, timeout_ns, status, kAppendTimeout);
}

// Attention node: put outputs, and lse times lse_unit (ln 2 where a kernel's lse is to base 2), into the weight
// node's partial region.
// Grid (blocks). out_view: [max_rows, heads, head dim]; lse_view: [max_rows, heads] float32, `staged` its address.
extern "C" __global__ void put_partials(const LaneState* lane, ucp_device_local_mem_list_h out_view,
                                        ucp_device_local_mem_list_h lse_view, const float* lse, float lse_unit, float* staged,
                                        unsigned num_heads, unsigned row_bytes, uint64_t lse_offset, unsigned* arrived) {
  const unsigned num_rows = lane->num_rows;
  if (!num_rows) return;
  for (unsigned row = blockIdx.x; row < num_rows; row += gridDim.x) {
    const size_t first = static_cast<size_t>(row) * num_heads;
    for (unsigned head = threadIdx.x; head < num_heads; head += blockDim.x)
      staged[first + head] = lse[first + head] * lse_unit;
    __syncthreads();
    ucp_device_put<UCS_DEVICE_LEVEL_BLOCK>(out_view, 0, static_cast<size_t>(row) * row_bytes, lane->remote, kPartials,
                                           static_cast<size_t>(row) * row_bytes, row_bytes, 0, UCP_DEVICE_FLAG_NODELAY,
                                           nullptr);
    ucp_device_put<UCS_DEVICE_LEVEL_BLOCK>(lse_view, 0, first * sizeof(float), lane->remote, kPartials,
                                           lse_offset + first * sizeof(float), num_heads * sizeof(float), 0,
                                           UCP_DEVICE_FLAG_NODELAY, nullptr);
  }
  if (threadIdx.x) return;
  __threadfence_system();
  raise_when_last(arrived, lane->remote, kWeightCounters, 0);
}

// Attention node: file appended keys and values of layers [first_layer, first_layer + gridDim.y) into pages.
// Grid (rows, layers). appended: [slots, layers, max_rows, 2, row]; pool: [layers, pages, 2, page tokens, row], where a row is
// [KV heads, head dim]; slots: [rows] of page * page_tokens + offset, -1 for a row that is dropped.
extern "C" __global__ void file_append(const LaneState* lane, const char* appended, char* pool, const int64_t* slots,
                                       uint64_t slot_bytes, unsigned max_rows, unsigned row_bytes, unsigned page_tokens,
                                       uint64_t layer_bytes, unsigned first_layer) {
  const unsigned row = blockIdx.x;
  if (row >= lane->num_append_rows) return;
  const int64_t slot = slots[row];
  if (slot < 0) return;
  const size_t layer = first_layer + blockIdx.y;
  const size_t page = slot / page_tokens, offset = slot % page_tokens;
  appended += lane->append_slot * slot_bytes;
  for (unsigned kind = 0; kind < 2; ++kind) {
    const int4* from = reinterpret_cast<const int4*>(appended + ((layer * max_rows + row) * 2 + kind) * row_bytes);
    int4* into = reinterpret_cast<int4*>(pool + layer * layer_bytes +
                                         ((page * 2 + kind) * page_tokens + offset) * row_bytes);
    for (unsigned i = threadIdx.x; i < row_bytes / sizeof(int4); i += blockDim.x) into[i] = __ldcg(from + i);
  }
}

// Attention node, after what was waited for: the counters' next values.
extern "C" __global__ void advance_lane(LaneState* lane, unsigned num_queries, unsigned num_appends) {
  if (lane->num_rows) lane->queries_before += num_queries;
  if (lane->num_append_rows) lane->appends_before += num_appends;
}
