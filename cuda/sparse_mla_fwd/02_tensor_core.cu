/// @file 02_tensor_core.cu
/// Sparse MLA forward, rung 2: 64 heads share a gathered tile of 64 rows, and tensor cores do the products.
///
/// | before        | 01_naive.cu: every head reads every row for itself, 2 FLOP per instruction and lane   |
/// |---------------|---------------------------------------------------------------------------------------|
/// | **this rung** | one gather for 64 heads; wgmma for S = Q K^T and O += P V; V is K's tile, seen MN-major |
/// | next          | 03_auto_pipelined.cu: the next tile is gathered while this one is multiplied           |
/// | reference     | reference/sparse_mla_fwd.cpp                                                           |
/// | chapter       | @ref sparse_mla_fwd_02                                                                 |
///
/// One CTA owns one query and 64 heads. Both warpgroups do the same: half of the keys of S, half of the columns of O.
///
///     [T1] gather 64 rows, zeros for invalid slots         all 256 threads, cp.async
///     [T2] S = Q K^T, 64 heads x 32 keys each               36 x m64n32k16
///     [T3] maximum over both halves, P = exp(S - m)         through shared memory
///     [T4] O = O * factor + P V, 64 heads x 256 columns     4 x m64n256k16
///
/// Shared memory  Q 72 KiB + K 72 KiB + P 8 KiB + 1 KiB = 153 KiB of 227 KiB: 1 CTA per SM.
/// Registers      O 128 + S 16 + addresses, of 255.
#include "../common/mla_products.cuh"
#include "../common/register.cuh"
#include "../device/trace.cuh"

namespace dsa::sparse_mla_fwd_02 {

constexpr int kThreads = 256;                         ///< two warpgroups
constexpr int kHalfKeys = kTileKeys / 2;              ///< of a warpgroup, in [T2]
constexpr int kHalfTiles = kVTiles / 2;               ///< of a warpgroup, in [T4]

struct SharedStorage {
  ColumnTile q[kQKTiles];
  ColumnTile k[kQKTiles];                             ///< its first 8 tiles are V; at the end, the output
  ColumnTile p;
  float row_max[2][kTileHeads];                       ///< of the current tile, by warpgroup; at the end, row sums
  bool valid[kTileKeys];                              ///< the slot has a row
};
static_assert(sizeof(SharedStorage) <= kMaxSharedMemory);

/// [T1] 8 threads per row, 16 bytes of each of its 9 column tiles per thread.
// [gather]
DSA_DEVICE void gather(SharedStorage& s, const MlaWork& w, int tile) {
  const int t = threadIdx.x;
  for (int row = t / 8; row < kTileKeys; row += kThreads / 8) {
    const int source = selected_row(w, tile * kTileKeys + row);
    copy_row<kQKTiles>(s.k, row, t % 8, kv_row(w, max(source, 0)), source >= 0);
    if (t % 8 == 0) s.valid[row] = source >= 0;
  }
}
// [gather]

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

    // [multiply]
    trace_step("[T2] scores");
    float scores[16];
    ptx::wgmma_fence();
    issue_scores(scores, s.q, s.k, warpgroup * kHalfKeys);
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_keep(scores);
    // [multiply]

    trace_step("[T3] softmax", 400);
    // [maximum]
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
    // [maximum]
    // [probabilities]
    for (int step = 0; step < 2; ++step) {
      uint32_t registers[4];
      pack_fragment(scores, step, registers);
      store_fragment(s.p, t, 2 * warpgroup + step, registers);
    }
    rescale(out, factor);
    ptx::fence_proxy_async_shared();
    __syncthreads();                                  // both halves of P are there
    // [probabilities]

    trace_step("[T4] output");
    ptx::wgmma_keep(out);
    ptx::wgmma_fence();
    issue_output(out, s.p, s.k + warpgroup * kHalfTiles, tile > 0);
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_keep(out);
    __syncthreads();                                  // before the next tile overwrites K, P and row_max
  }

  // [finish]
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
  // [finish]
}

static const char* unsupported(const SparseMlaFwdArgs& a) { return tensor_core_unsupported(a); }

static cudaError_t launch(const SparseMlaFwdArgs& a, cudaStream_t stream) {
  const int64_t ctas = mla_work_count(a);
  if (ctas == 0) return cudaSuccess;
  return dsa::launch(kernel, {dim3(unsigned(ctas)), dim3(kThreads), sizeof(SharedStorage), stream}, a);
}

static const Register<SparseMlaFwdArgs, unsupported, launch> registered{
    "02_tensor_core", "64 heads share a gathered tile, wgmma for both products", Accuracy::kBf16, Repeatable::kYes};

}  // namespace dsa::sparse_mla_fwd_02
