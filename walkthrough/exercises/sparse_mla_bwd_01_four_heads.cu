/// @file sparse_mla_bwd_01_four_heads.cu
/// Exercise: four heads of a query in one CTA, added up in registers before the atomic: a quarter of the atomics.
/// About 12 lines are missing.
///
///     mkdir ~/my_kernels && cp walkthrough/exercises/sparse_mla_bwd_01_four_heads.cu ~/my_kernels/
///     cmake -B build -DDSA_USER_KERNELS=$HOME/my_kernels && cmake --build build
///     build/bin/dsa check --stage sparse_mla_bwd --step ex_four_heads --device emulator
///
/// The chapter (walkthrough/sparse_mla_bwd/01_naive.md) has the solution.
#include <algorithm>

#include "cuda/common/block_sum.cuh"
#include "cuda/common/register.cuh"
#include "cuda/common/selected.cuh"

namespace ex_four_heads {

using namespace dsa;

constexpr int kThreads = 192;
constexpr int kSlots = kThreads;
constexpr int kColumns = kDimQK / kThreads;      // columns t, t + 192, t + 384 belong to thread t in [B2]
constexpr int kHeads = 4;                        // of one CTA; they read the same index list and KV group

struct SharedStorage {
  float q[kHeads][kDimQK];
  float d_out[kHeads][kDimV];
  float p[kHeads][kSlots];
  float ds[kHeads][kSlots];
  int row[kSlots];                               // KV row of the slot, or kInvalid
  float partial[kThreads / 32];
};

/// [B2] Adds what slot j contributes, from all four heads, to this thread's three columns.
/// @param dq  this thread's columns of the four dq rows: dq[n] += dS[n][j] * kv
/// @param kv  KV row of the slot, 576 columns
/// @param dkv its gradient, 576 columns, shared with every other CTA: one atomicAdd per column
DSA_DEVICE void accumulate(const SharedStorage& s, int j, float (&dq)[kHeads][kColumns], const bf16* kv, float* dkv) {
  // ---- your code: about 12 lines ------------------------------------------------------------------------------
  // For each of the three columns: load kv once, loop over the heads, and keep the sum for dkv in a register until
  // the heads are through. The rope columns (512 and up) get no P * d_out.
  (void)s;
  (void)j;
  (void)dq;
  (void)kv;
  (void)dkv;
  // ---- end of your code ---------------------------------------------------------------------------------------
}

static __global__ void __launch_bounds__(kThreads) backward(const SparseMlaBwdArgs a) {
  SharedStorage& s = shared_memory<SharedStorage>();
  const int t = threadIdx.x;
  const int64_t head_row = int64_t(blockIdx.x) * kHeads;   // of the first head; (batch * s_q + query) * h_q + head
  const int head = int(head_row % a.h_q);
  const int query = int(head_row / a.h_q % a.s_q);
  const int batch = int(head_row / a.h_q / a.s_q);
  const int group = head / (a.h_q / a.g);
  const auto kv_row = [&](int r) { return (int64_t(batch) * a.s_kv + r) * a.g + group; };
  const int32_t* indices = index_list(a, batch, query, group);
  const int64_t limit = row_limit(a, query);

  float delta[kHeads], lse[kHeads], sink[kHeads];
  for (int n = 0; n < kHeads; ++n) {
    float product = 0;
    for (int d = t; d < kDimQK; d += kThreads) s.q[n][d] = float_from(a.q[(head_row + n) * kDimQK + d]);
    for (int d = t; d < kDimV; d += kThreads) {
      s.d_out[n][d] = float_from(a.d_out[(head_row + n) * kDimV + d]);
      product += float_from(a.out[(head_row + n) * kDimV + d]) * s.d_out[n][d];
    }
    delta[n] = block_sum(product, s.partial);    // its barriers also publish q and d_out
    if (t == 0) a.delta[head_row + n] = delta[n];
    lse[n] = a.lse[head_row + n];
    sink[n] = a.attn_sink ? 1.0f / (1.0f + expf(a.attn_sink[head + n] - lse[n])) : 1.0f;
  }

  float dq[kHeads][kColumns] = {};
  const int slots = slot_count(a, batch, query);
  for (int tile = 0; tile < slots; tile += kSlots) {
    // [B1] One slot per thread, the four heads one after the other.
    const int slot = tile + t;
    const int index = slot < slots ? indices[slot] : kInvalid;
    const bool valid = index >= 0 && index < limit;
    s.row[t] = valid ? index : kInvalid;
    for (int n = 0; n < kHeads && valid; ++n) {
      const bf16* kv = a.kv + kv_row(index) * kDimQK;
      float logit = 0, dp = 0;
      for (int d = 0; d < kDimQK; d += 4) {
        const float4 x = load4(kv + d);
        const float* q = s.q[n] + d;
        const float* d_out = s.d_out[n] + d;
        logit += q[0] * x.x + q[1] * x.y + q[2] * x.z + q[3] * x.w;
        if (d < kDimV) dp += d_out[0] * x.x + d_out[1] * x.y + d_out[2] * x.z + d_out[3] * x.w;
      }
      const bool silent = lse[n] == INFINITY;    // a head without valid slots adds exactly nothing
      const float p = silent ? 0.0f : expf(logit * a.sm_scale - lse[n]) * sink[n];
      s.p[n][t] = p;
      s.ds[n][t] = silent ? 0.0f : p * (dp - delta[n]) * a.sm_scale;
    }
    __syncthreads();

    for (int j = 0; j < kSlots; ++j) {
      if (s.row[j] == kInvalid) continue;
      const int64_t base = kv_row(s.row[j]) * kDimQK;
      accumulate(s, j, dq, a.kv + base, a.dkv_f32 + base);
    }
    __syncthreads();                             // before the next tile overwrites row, p and ds
  }
  for (int n = 0; n < kHeads; ++n)
    for (int i = 0; i < kColumns; ++i)
      a.dq[(head_row + n) * kDimQK + t + i * kThreads] = bf16_from(dq[n][i]);
}

static __global__ void clear(float* dkv_f32, int64_t elements) {
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < elements; i += int64_t(gridDim.x) * blockDim.x)
    dkv_f32[i] = 0;
}

static __global__ void round_dkv(const float* dkv_f32, bf16* dkv, int64_t elements) {
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < elements; i += int64_t(gridDim.x) * blockDim.x)
    dkv[i] = bf16_from(dkv_f32[i]);
}

static const char* unsupported(const SparseMlaBwdArgs& a) {
  if (a.h_q / a.g % kHeads) return "h_q / g must be a multiple of 4 (heads of one CTA)";
  if (int64_t(a.b) * a.s_q * a.h_q / kHeads > 0x7fffffff) return "b * s_q * h_q must be below 2^33 (one CTA per four)";
  return nullptr;
}

static cudaError_t launch(const SparseMlaBwdArgs& a, cudaStream_t stream) {
  const int64_t ctas = int64_t(a.b) * a.s_q * a.h_q / kHeads;
  const int64_t elements = int64_t(a.b) * a.s_kv * a.g * kDimQK;
  const LaunchConfig flat{dim3(unsigned(std::min<int64_t>((elements + 255) / 256, 8192))), dim3(256), 0, stream};
  if (elements > 0)
    if (const cudaError_t e = dsa::launch(clear, flat, a.dkv_f32, elements)) return e;
  if (ctas > 0)
    if (const cudaError_t e =
            dsa::launch(backward, {dim3(unsigned(ctas)), dim3(kThreads), sizeof(SharedStorage), stream}, a))
      return e;
  if (elements > 0)
    if (const cudaError_t e = dsa::launch(round_dkv, flat, a.dkv_f32, a.dkv, elements)) return e;
  return cudaSuccess;
}

static const Register<SparseMlaBwdArgs, unsupported, launch> registered{
    "ex_four_heads", "exercise: four heads per CTA, a quarter of the atomics", Accuracy::kF32, Repeatable::kNo};

}  // namespace ex_four_heads
