/// @file template.cu
/// Your own sparse MLA forward kernel. Copy this file out of the tree, rename it, and change what you like:
///
///     mkdir ~/my_kernels && cp walkthrough/your_kernel/template.cu ~/my_kernels/mine.cu
///     cmake --preset cpu -DDSA_USER_KERNELS=$HOME/my_kernels && cmake --build --preset cpu
///     build-cpu/bin/dsa check --stage sparse_mla_fwd --step mine --device emulator
///
/// What it does: one warp per (query, head). The lanes share the 576 columns of a KV row, so that a warp reads a
/// row in whole cache lines; a butterfly of shuffles completes each dot product; online softmax, one slot at a time.
#include "cuda/common/register.cuh"
#include "cuda/common/selected.cuh"

namespace mine {

using namespace dsa;

constexpr int kLanes = 32;
constexpr int kPerLaneQK = kDimQK / kLanes;   // 18 columns of q and k
constexpr int kPerLaneV = kDimV / kLanes;     // 16 columns of v and out

static __global__ void __launch_bounds__(kLanes) kernel(const SparseMlaFwdArgs a) {
  const int lane = threadIdx.x;
  const int64_t head_row = blockIdx.x;        // (batch * s_q + query) * h_q + head
  const int head = int(head_row % a.h_q);
  const int query = int(head_row / a.h_q % a.s_q);
  const int batch = int(head_row / a.h_q / a.s_q);
  const int group = head / (a.h_q / a.g);
  const bf16* q = static_cast<const bf16*>(a.q) + head_row * kDimQK;
  const int32_t* indices = index_list(a, batch, query, group);
  const int slots = slot_count(a, batch, query);
  const int64_t limit = row_limit(a, query);

  float m = -INFINITY, l = 0, out[kPerLaneV] = {};
  for (int slot = 0; slot < slots; ++slot) {
    const int index = indices[slot];
    if (index < 0 || index >= limit) continue;              // never form an address from an invalid index
    const bf16* kv = static_cast<const bf16*>(a.kv) + ((int64_t(batch) * a.s_kv + index) * a.g + group) * kDimQK;

    float dot = 0;
    for (int i = 0; i < kPerLaneQK; ++i) dot += float_from(q[i * kLanes + lane]) * float_from(kv[i * kLanes + lane]);
    for (int distance = 16; distance > 0; distance /= 2) dot += __shfl_xor_sync(0xffffffffu, dot, distance);
    const float logit = dot * a.sm_scale;

    const float m_new = fmaxf(m, logit);
    const float rescale = expf(m - m_new);                  // 0 for the first valid slot: exp(-inf)
    const float p = expf(logit - m_new);
    m = m_new;
    l = l * rescale + p;
    for (int i = 0; i < kPerLaneV; ++i) out[i] = out[i] * rescale + p * float_from(kv[i * kLanes + lane]);
  }

  const float lse = l == 0 ? INFINITY : m + logf(l);
  const float sink = a.attn_sink ? 1.0f / (1.0f + expf(a.attn_sink[head] - lse)) : 1.0f;
  for (int i = 0; i < kPerLaneV; ++i)
    a.out[head_row * kDimV + i * kLanes + lane] = bf16_from(l == 0 ? 0.0f : out[i] / l * sink);
  if (lane == 0) {
    a.lse[head_row] = lse;
    a.max_logits[head_row] = m;
  }
}

/// Say no, with the reason, to what your kernel cannot do: the harness then skips those cases instead of failing.
static const char* unsupported(const SparseMlaFwdArgs& a) {
  if (a.fp8) return "this kernel reads bf16 only";
  return nullptr;
}

static cudaError_t launch(const SparseMlaFwdArgs& a, cudaStream_t stream) {
  const int64_t ctas = int64_t(a.b) * a.s_q * a.h_q;
  if (ctas == 0) return cudaSuccess;
  return dsa::launch(kernel, {dim3(unsigned(ctas)), dim3(kLanes), 0, stream}, a);
}

static const Register<SparseMlaFwdArgs, unsupported, launch> registered{
    "mine", "one warp per (query, head)", Accuracy::kF32, Repeatable::kYes};

}  // namespace mine
