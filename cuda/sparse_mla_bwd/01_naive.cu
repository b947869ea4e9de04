/// @file 01_naive.cu
/// Sparse MLA backward, rung 1: the formulas, one CTA per (query, head), scalar atomics for dkv.
///
/// | before        | reference/sparse_mla_bwd.cpp: the same formulas in float64           |
/// |---------------|---------------------------------------------------------------------|
/// | **this rung** | recompute P from lse, then dS, then add into dq (registers) and dkv (atomics) |
/// | next          | 02: tensor cores                                                    |
/// | chapter       | @ref sparse_mla_bwd_01                                              |
///
/// Tiles of 192 slots; 192 threads own three of the 576 columns each:
///
///     192 threads        scores and their gradients                gradients of the inputs
///     -----------        --------------------------                -----------------------
///     thread t      [B1] P[t]  = exp(q . k_row[t] * sm_scale - lse)
///                        dS[t] = P[t] * (d_out . v_row[t] - delta) * sm_scale
///                        __syncthreads
///                                                             [B2] dq[c]       += dS[j] * k_row[j][c]
///                                                                  dkv[row][c] += dS[j] * q[c] + P[j] * d_out[c]
///                                                                  __syncthreads
///
/// Shared memory  q 2304 B, d_out 2048 B, P, dS and rows 3 x 768 B, reduction 24 B: 6680 B.
/// The order in which atomics add is not fixed, so dkv is not repeatable to the bit; dq and delta are.
#include "../common/block_sum.cuh"
#include "../common/register.cuh"
#include "../common/selected.cuh"

namespace dsa::sparse_mla_bwd_01 {

constexpr int kThreads = 192;
constexpr int kSlots = kThreads;                 ///< slots of one tile: one per thread in [B1]
constexpr int kColumns = kDimQK / kThreads;      ///< columns t, t + 192, t + 384 belong to thread t in [B2]
static_assert(kColumns * kThreads == kDimQK, "the columns must divide evenly among the threads");

struct SharedStorage {
  float q[kDimQK];
  float d_out[kDimV];
  float p[kSlots];
  float ds[kSlots];
  int row[kSlots];                               ///< KV row of the slot, or kInvalid
  float partial[kThreads / 32];
};

static __global__ void __launch_bounds__(kThreads) backward(const SparseMlaBwdArgs a) {
  SharedStorage& s = shared_memory<SharedStorage>();
  const int t = threadIdx.x;
  const int64_t head_row = blockIdx.x;           // (batch * s_q + query) * h_q + head
  const int head = int(head_row % a.h_q);
  const int query = int(head_row / a.h_q % a.s_q);
  const int batch = int(head_row / a.h_q / a.s_q);
  const int group = head / (a.h_q / a.g);
  const auto kv_row = [&](int r) { return (int64_t(batch) * a.s_kv + r) * a.g + group; };
  const int32_t* indices = index_list(a, batch, query, group);
  const int64_t limit = row_limit(a, query);

  // [delta]
  float product = 0;
  for (int d = t; d < kDimQK; d += kThreads) s.q[d] = float_from(a.q[head_row * kDimQK + d]);
  for (int d = t; d < kDimV; d += kThreads) {
    s.d_out[d] = float_from(a.d_out[head_row * kDimV + d]);
    product += float_from(a.out[head_row * kDimV + d]) * s.d_out[d];
  }
  const float delta = block_sum(product, s.partial);   // its barriers also publish q and d_out
  if (t == 0) a.delta[head_row] = delta;
  // [delta]

  const float lse = a.lse[head_row];
  // lse = +inf marks a query without valid slots: exp(logit - inf) = 0, so it would add zeros everywhere. Leaving
  // its slots out gives exactly that, and never reads a row.
  const int slots = lse == INFINITY ? 0 : slot_count(a, batch, query);
  const float sink = a.attn_sink ? 1.0f / (1.0f + expf(a.attn_sink[head] - lse)) : 1.0f;

  float dq[kColumns] = {};
  for (int tile = 0; tile < slots; tile += kSlots) {
    // [scores]
    // [B1] One slot per thread. The index is judged before an address is formed from it.
    const int slot = tile + t;
    const int index = slot < slots ? indices[slot] : kInvalid;
    const bool valid = index >= 0 && index < limit;
    s.row[t] = valid ? index : kInvalid;
    if (valid) {
      const bf16* kv = a.kv + kv_row(index) * kDimQK;
      float logit = 0, dp = 0;
      for (int d = 0; d < kDimQK; d += 4) {
        const float4 x = load4(kv + d);
        logit += s.q[d] * x.x + s.q[d + 1] * x.y + s.q[d + 2] * x.z + s.q[d + 3] * x.w;
        if (d < kDimV) dp += s.d_out[d] * x.x + s.d_out[d + 1] * x.y + s.d_out[d + 2] * x.z + s.d_out[d + 3] * x.w;
      }
      const float p = expf(logit * a.sm_scale - lse) * sink;
      s.p[t] = p;
      s.ds[t] = p * (dp - delta) * a.sm_scale;
    }
    __syncthreads();
    // [scores]

    // [gradients]
    // [B2] Three columns per thread. The latent columns of a KV row are both K and V; the rope columns only K.
    for (int j = 0; j < kSlots; ++j) {
      if (s.row[j] == kInvalid) continue;
      const int64_t base = kv_row(s.row[j]) * kDimQK;
      for (int n = 0; n < kColumns; ++n) {
        const int c = t + n * kThreads;
        dq[n] += s.ds[j] * float_from(a.kv[base + c]);
        atomicAdd(a.dkv_f32 + base + c, s.ds[j] * s.q[c] + (c < kDimV ? s.p[j] * s.d_out[c] : 0.0f));
      }
    }
    __syncthreads();                             // before the next tile overwrites row, p and ds
    // [gradients]
  }
  for (int n = 0; n < kColumns; ++n) a.dq[head_row * kDimQK + t + n * kThreads] = bf16_from(dq[n]);
}

/// dkv_f32 = 0, before the atomics; elements as one flat array.
static __global__ void clear(float* dkv_f32, int64_t elements) {
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < elements; i += int64_t(gridDim.x) * blockDim.x)
    dkv_f32[i] = 0;
}

/// dkv = bf16(dkv_f32), the one rounding of the accumulated gradient.
static __global__ void round_dkv(const float* dkv_f32, bf16* dkv, int64_t elements) {
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < elements; i += int64_t(gridDim.x) * blockDim.x)
    dkv[i] = bf16_from(dkv_f32[i]);
}

static const char* unsupported(const SparseMlaBwdArgs& a) {
  if (int64_t(a.b) * a.s_q * a.h_q > 0x7fffffff) return "b * s_q * h_q must be below 2^31 (one CTA each)";
  return nullptr;
}

// [launch]
static cudaError_t launch(const SparseMlaBwdArgs& a, cudaStream_t stream) {
  const int64_t ctas = int64_t(a.b) * a.s_q * a.h_q;
  const int64_t elements = int64_t(a.b) * a.s_kv * a.g * kDimQK;
  // Eight elements per thread, and not more CTAs than fill the chip a few times over.
  const LaunchConfig flat{dim3(unsigned(std::min<int64_t>((elements + 2047) / 2048, 4096))), dim3(256), 0, stream};
  if (elements > 0)
    if (const cudaError_t e = dsa::launch(clear, flat, a.dkv_f32, elements)) return e;
  if (ctas > 0)
    if (const cudaError_t e = dsa::launch(
            backward, {dim3(unsigned(ctas)), dim3(kThreads), sizeof(SharedStorage), stream}, a))
      return e;
  if (elements > 0)
    if (const cudaError_t e = dsa::launch(round_dkv, flat, a.dkv_f32, a.dkv, elements)) return e;
  return cudaSuccess;
// [launch]
}

static const Register<SparseMlaBwdArgs, unsupported, launch> registered{
    "01_naive", "one CTA per (query, head), scalar float atomics for dkv", Accuracy::kF32, Repeatable::kNo};

}  // namespace dsa::sparse_mla_bwd_01
