/// @file sparse_mla_fwd_02_column_slices.cu
/// Exercise: O += P V of rung 2 with m64n64k16, 64 columns at a time, in place of m64n256k16.
/// About 10 lines are missing.
///
///     mkdir ~/my_kernels && cp walkthrough/exercises/sparse_mla_fwd_02_column_slices.cu ~/my_kernels/
///     cmake -B build -DDSA_USER_KERNELS=$HOME/my_kernels && cmake --build build
///     build/bin/dsa check --stage sparse_mla_fwd --step ex_column_slices --device emulator
///
/// The chapter (walkthrough/sparse_mla_fwd/02_tensor_core.md) has the solution.
#include "cuda/common/mla_products.cuh"
#include "cuda/common/register.cuh"
#include "cuda/device/trace.cuh"

namespace ex_column_slices {

using namespace dsa;

constexpr int kThreads = 256;                         // two warpgroups
constexpr int kHalfKeys = kTileKeys / 2;              // of a warpgroup, in [T2]
constexpr int kHalfTiles = kVTiles / 2;               // of a warpgroup, in [T4]

struct SharedStorage {
  ColumnTile q[kQKTiles];
  ColumnTile k[kQKTiles];                             // its first 8 tiles are V; at the end, the output
  ColumnTile p;
  float row_max[2][kTileHeads];                       // of the current tile, by warpgroup; at the end, row sums
  bool valid[kTileKeys];                              // the slot has a row
};
static_assert(sizeof(SharedStorage) <= kMaxSharedMemory);

/// O (+)= P V for the 256 columns of a warpgroup. The kernel fences before, commits and waits after.
/// @param p  64 heads x 64 keys
/// @param v  the warpgroup's four column tiles: 64 keys x 64 columns each, a key per row
DSA_DEVICE void issue_column_slices(float (&out)[128], const ColumnTile& p, const ColumnTile* v, bool accumulate) {
  // ---- your code: about 10 lines ------------------------------------------------------------------------------
  // 1. A is P, K-major: as in issue_scores(), 16 keys are 32 bytes further.
  // 2. B is one column tile, v[slice], MN-major. Which of LBO and SBO matters now, and how far away are 16 keys?
  //    The table is at matrix_descriptor() in cuda/device/ptx/wgmma.cuh.
  // 3. wgmma_m64n64k16_bf16_ss<false, true> takes a float (&)[32]. Which of the 128 registers are those of slice 0?
  (void)out, (void)p, (void)v, (void)accumulate;
  // ---- end of your code ---------------------------------------------------------------------------------------
}

/// [T1] 8 threads per row, 16 bytes of each of its 9 column tiles per thread.
DSA_DEVICE void gather(SharedStorage& s, const MlaWork& w, int tile) {
  const int t = threadIdx.x;
  for (int row = t / 8; row < kTileKeys; row += kThreads / 8) {
    const int source = selected_row(w, tile * kTileKeys + row);
    copy_row<kQKTiles>(s.k, row, t % 8, kv_row(w, max(source, 0)), source >= 0);
    if (t % 8 == 0) s.valid[row] = source >= 0;
  }
}

static __global__ void __launch_bounds__(kThreads, 1) kernel(const SparseMlaFwdArgs a) {
  SharedStorage& s = shared_memory<SharedStorage>();
  const int t = threadIdx.x, warpgroup = t / 128;
  const MlaWork w = mla_work(a, blockIdx.x);
  const float c = a.sm_scale * kLog2E;

  copy_q<kThreads>(s.q, static_cast<const bf16*>(a.q), w, t);
  ptx::cp_async_commit_group();

  float m[2] = {-INFINITY, -INFINITY};                // largest score so far of this thread's two rows
  float l[2] = {};                                    // sum of p so far, over this thread's columns
  float out[128] = {};
  for (int tile = 0; tile * kTileKeys < w.slots; ++tile) {
    trace_step("[T1] gather");
    gather(s, w, tile);
    ptx::cp_async_commit_group();
    ptx::cp_async_wait_group<0>();
    ptx::fence_proxy_async_shared();                  // the tensor cores read through the async proxy
    __syncthreads();

    trace_step("[T2] scores");
    float scores[16];
    ptx::wgmma_fence();
    issue_scores(scores, s.q, s.k, warpgroup * kHalfKeys);
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_keep(scores);

    trace_step("[T3] softmax", 400);
    mask_scores(scores, __ballot_sync(0xffffffffu, s.valid[warpgroup * kHalfKeys + t % 32]), t);
    for (int h = 0; h < 2; ++h) {
      const float largest = tile_max(scores, h);
      if (t % 4 == 0) s.row_max[warpgroup][accumulator_row(t, h)] = largest;
    }
    __syncthreads();
    float factor[2];
    for (int h = 0; h < 2; ++h) {
      const int row = accumulator_row(t, h);
      const float m_new = fmaxf(m[h], fmaxf(s.row_max[0][row], s.row_max[1][row]));
      factor[h] = rescale_factor(m[h], m_new, c);
      m[h] = m_new;
      l[h] = l[h] * factor[h] + exponentiate(scores, h, m_new, c);
    }
    for (int step = 0; step < 2; ++step) {
      uint32_t registers[4];
      pack_fragment(scores, step, registers);
      store_fragment(s.p, t, 2 * warpgroup + step, registers);
    }
    rescale(out, factor);
    ptx::fence_proxy_async_shared();
    __syncthreads();                                  // both halves of P are there

    trace_step("[T4] output");
    ptx::wgmma_keep(out);
    ptx::wgmma_fence();
    issue_column_slices(out, s.p, s.k + warpgroup * kHalfTiles, tile > 0);
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_keep(out);
    __syncthreads();                                  // before the next tile overwrites K, P and row_max
  }

  for (int h = 0; h < 2; ++h) {
    l[h] = row_sum(l[h]);
    if (t % 4 == 0) s.row_max[warpgroup][accumulator_row(t, h)] = l[h];
  }
  ptx::cp_async_wait_group<0>();                      // of Q, when there was no tile
  __syncthreads();
  float factor[2];
  for (int h = 0; h < 2; ++h) {
    const int row = accumulator_row(t, h);
    factor[h] = store_row_end(a, w, t, h, m[h], s.row_max[0][row] + s.row_max[1][row], m[h], warpgroup == 0).factor;
  }
  rescale(out, factor);
  store_output(a, w, warpgroup * kDimV / 2, s.k + warpgroup * kHalfTiles, t, out);
}

static const char* unsupported(const SparseMlaFwdArgs& a) { return tensor_core_unsupported(a); }

static cudaError_t launch(const SparseMlaFwdArgs& a, cudaStream_t stream) {
  const int64_t ctas = mla_work_count(a);
  if (ctas == 0) return cudaSuccess;
  return dsa::launch(kernel, {dim3(unsigned(ctas)), dim3(kThreads), sizeof(SharedStorage), stream}, a);
}

static const Register<SparseMlaFwdArgs, unsupported, launch> registered{
    "ex_column_slices", "exercise: the output 64 columns at a time", Accuracy::kBf16, Repeatable::kYes};

}  // namespace ex_column_slices
