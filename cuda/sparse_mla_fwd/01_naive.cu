/// @file 01_naive.cu
/// Sparse MLA forward, rung 1: the formula, one CTA per (query, head), no tensor cores.
///
/// | before        | reference/sparse_mla_fwd.cpp: the same formula in float64           |
/// |---------------|---------------------------------------------------------------------|
/// | **this rung** | one thread per selected row for the scores, then one thread per four output columns |
/// | next          | 02: tensor cores                                                    |
/// | chapter       | @ref sparse_mla_fwd_01                                              |
///
/// Online softmax over tiles of 128 slots (Milakov and Gimelshein, arXiv 1805.02867):
///
///     128 threads        scores                      softmax              output
///     -----------        ------                      -------              ------
///     thread t      [S1] logit[t] = q . k_row[t]
///                        __syncthreads
///                                               [S2] m, rescale, p[t]
///                                                    __syncthreads
///                                                                    [S3] out[4t..4t+3] += p[j] * v_row[j]
///                                                                         __syncthreads
///
/// Shared memory  q 2304 B, logits, probabilities and rows 3 x 512 B: 3840 B.
/// Every head reads every KV row twice, once as K and once as V: 128 * (1152 + 1024) B per (query, slot). That is the cost
/// the later rungs remove by computing 64 heads per CTA.
#include "../common/register.cuh"
#include "../common/selected.cuh"

namespace dsa::sparse_mla_fwd_01 {

constexpr int kThreads = 128;
constexpr int kSlots = kThreads;                 ///< slots of one tile: one per thread in [S1]
constexpr int kColumns = kDimV / kThreads;       ///< output columns of one thread in [S3]
static_assert(kColumns == 4, "load4 below takes four columns at a time");

struct SharedStorage {
  float q[kDimQK];
  float logit[kSlots];
  float p[kSlots];
  int row[kSlots];      ///< KV row of the slot, or kInvalid
};

/// q . k over the 576 columns of one KV row.
// [dot]
template <class T> DSA_DEVICE float dot(const float (&q)[kDimQK], const T* k) {
  float sum = 0;
  for (int d = 0; d < kDimQK; d += 4) {
    const float4 x = load4(k + d);
    sum += q[d] * x.x + q[d + 1] * x.y + q[d + 2] * x.z + q[d + 3] * x.w;
  }
  return sum;
// [dot]
}

/// @tparam T bf16 or e4m3, the type of q and kv
template <class T> static __global__ void __launch_bounds__(kThreads) kernel(const SparseMlaFwdArgs a) {
  SharedStorage& s = shared_memory<SharedStorage>();
  const int t = threadIdx.x;
  const int64_t head_row = blockIdx.x;           // (batch * s_q + query) * h_q + head
  const int head = int(head_row % a.h_q);
  const int query = int(head_row / a.h_q % a.s_q);
  const int batch = int(head_row / a.h_q / a.s_q);
  const int group = head / (a.h_q / a.g);

  const T* q = static_cast<const T*>(a.q) + head_row * kDimQK;
  const T* kv = static_cast<const T*>(a.kv);     // row r of this batch and group starts at kv_row(r) * 576
  const auto kv_row = [&](int r) { return (int64_t(batch) * a.s_kv + r) * a.g + group; };
  const int32_t* indices = index_list(a, batch, query, group);
  const int slots = slot_count(a, batch, query);
  const int64_t limit = row_limit(a, query);
  const float logit_scale = a.sm_scale * (a.q_scale ? a.q_scale[head_row] : 1.0f);

  for (int d = t; d < kDimQK; d += kThreads) s.q[d] = float_from(q[d]);
  __syncthreads();

  float m = -INFINITY;            // largest logit so far
  float l = 0;                    // sum of exp(logit - m) so far
  float out[kColumns] = {};       // sum of exp(logit - m) * v so far, columns 4t..4t+3
  for (int tile = 0; tile < slots; tile += kSlots) {
    // [scores]
    // [S1] One slot per thread. The index is judged before an address is formed from it.
    const int slot = tile + t;
    const int index = slot < slots ? indices[slot] : kInvalid;
    const bool valid = index >= 0 && index < limit;
    s.row[t] = valid ? index : kInvalid;
    s.logit[t] = -INFINITY;
    if (valid) {
      const float kv_scale = a.kv_scale ? a.kv_scale[kv_row(index)] : 1.0f;
      s.logit[t] = dot(s.q, kv + kv_row(index) * kDimQK) * (logit_scale * kv_scale);
    }
    __syncthreads();
    // [scores]

    // [softmax]
    // [S2] Every thread finds the same maximum, so m and l need no exchange.
    float m_new = m;
    for (int j = 0; j < kSlots; ++j) m_new = fmaxf(m_new, s.logit[j]);
    const bool any = m_new > -INFINITY;          // else every slot so far was invalid, and there is nothing to add
    const float rescale = any ? expf(m - m_new) : 1.0f;
    s.p[t] = any ? expf(s.logit[t] - m_new) : 0.0f;
    m = m_new;
    l *= rescale;
    for (float& x : out) x *= rescale;
    __syncthreads();
    // [softmax]

    // [output]
    // [S3] Four output columns per thread. Invalid rows are skipped, not multiplied by zero: 0 * NaN is NaN.
    for (int j = 0; j < kSlots; ++j) {
      if (s.row[j] == kInvalid) continue;
      const float p = s.p[j];
      const float kv_scale = a.kv_scale ? a.kv_scale[kv_row(s.row[j])] : 1.0f;
      const float4 v = load4(kv + kv_row(s.row[j]) * kDimQK + kColumns * t);
      l += p;
      out[0] += p * kv_scale * v.x;
      out[1] += p * kv_scale * v.y;
      out[2] += p * kv_scale * v.z;
      out[3] += p * kv_scale * v.w;
    }
    __syncthreads();                             // before the next tile overwrites row, logit and p
    // [output]
  }

  // [finish]
  const bool empty = l == 0;
  const float lse = empty ? INFINITY : m + logf(l);
  // The sink joins the denominator alone: out *= 1 / (1 + exp(sink - lse)).
  const float sink = a.attn_sink ? 1.0f / (1.0f + expf(a.attn_sink[head] - lse)) : 1.0f;
  for (int c = 0; c < kColumns; ++c)
    a.out[head_row * kDimV + kColumns * t + c] = bf16_from(empty ? 0.0f : out[c] / l * sink);
  if (t == 0) {
    a.lse[head_row] = lse;
    a.max_logits[head_row] = m;
  // [finish]
  }
}

static const char* unsupported(const SparseMlaFwdArgs& a) {
  if (int64_t(a.b) * a.s_q * a.h_q > 0x7fffffff) return "b * s_q * h_q must be below 2^31 (one CTA each)";
  return nullptr;
}

static cudaError_t launch(const SparseMlaFwdArgs& a, cudaStream_t stream) {
  const int64_t ctas = int64_t(a.b) * a.s_q * a.h_q;
  if (ctas == 0) return cudaSuccess;
  return dsa::launch(a.fp8 ? kernel<e4m3> : kernel<bf16>,
                     {dim3(unsigned(ctas)), dim3(kThreads), sizeof(SharedStorage), stream}, a);
}

static const Register<SparseMlaFwdArgs, unsupported, launch> registered{
    "01_naive", "one CTA per (query, head), one thread per selected row", Accuracy::kF32, Repeatable::kYes};

}  // namespace dsa::sparse_mla_fwd_01
