/// @file 03_auto_pipelined.cu
/// Sparse MLA forward, rung 3: the next tile is gathered while this one is multiplied.
///
/// | before        | 02_tensor_core.cu: gather, wait, multiply, one tile after the other                     |
/// |---------------|------------------------------------------------------------------------------------------|
/// | **this rung** | two K buffers; a template makes prologue, steady state and epilogue from load and compute |
/// | next          | 04_warp_specialized.cu: copying gets a warpgroup of its own                              |
/// | reference     | reference/sparse_mla_fwd.cpp                                                             |
/// | chapter       | @ref sparse_mla_fwd_03                                                                   |
///
///     load     [T1] gather tile i + 1: 64 rows, zeros for invalid slots; look up the rows of tile i + 2
///     compute  [T2] S = Q K^T, 64 heads x 32 keys each            36 x m64n32k16
///              [T3] maximum over both halves, P = exp(S - m)      through shared memory
///              [T4] O = O * factor + P V, 64 heads x 256 columns  4 x m64n256k16
///
/// Shared memory  Q 72 KiB + K 2 x 72 KiB + P 8 KiB + 1 KiB = 225 KiB of 227 KiB: 1 CTA per SM.
/// Registers      O 128 + S 16 + addresses, of 255.
#include "../common/mla_products.cuh"
#include "../common/pipelined_loop.cuh"
#include "../common/register.cuh"
#include "../device/trace.cuh"

namespace dsa::sparse_mla_fwd_03 {

constexpr int kThreads = 256;                         ///< two warpgroups
constexpr int kStages = 2;
constexpr int kHalfKeys = kTileKeys / 2;              ///< of a warpgroup, in [T2]
constexpr int kHalfTiles = kVTiles / 2;               ///< of a warpgroup, in [T4]
constexpr int kRowsPerThread = kTileKeys / (kThreads / 8);

struct SharedStorage {
  ColumnTile q[kQKTiles];
  ColumnTile k[kStages][kQKTiles];                    ///< V in the first 8 tiles; at the end, the output
  ColumnTile p;
  float row_max[2][kTileHeads];                       ///< of the current tile, by warpgroup; at the end, row sums
  bool valid[kStages][kTileKeys];                     ///< the slot has a row
};
static_assert(sizeof(SharedStorage) <= kMaxSharedMemory);

/// The rows that this thread gathers of a tile, -1 for none.
struct Rows { int row[kRowsPerThread]; };

// [look_up]
DSA_DEVICE Rows look_up(const MlaWork& w, int tile) {
  Rows rows;
  for (int i = 0; i < kRowsPerThread; ++i)
    rows.row[i] = selected_row(w, tile * kTileKeys + int(threadIdx.x) / 8 + i * (kThreads / 8));
  return rows;
}
// [look_up]

/// [T1] 8 threads per row, 16 bytes of each of its 9 column tiles per thread.
// [gather]
DSA_DEVICE void gather(SharedStorage& s, const MlaWork& w, int stage, const Rows& rows) {
  const int t = threadIdx.x;
  for (int i = 0; i < kRowsPerThread; ++i) {
    const int row = t / 8 + i * (kThreads / 8), source = rows.row[i];
    copy_row<kQKTiles>(s.k[stage], row, t % 8, kv_row(w, max(source, 0)), source >= 0);
    if (t % 8 == 0) s.valid[stage][row] = source >= 0;
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
  // [load]
  Rows ahead = look_up(w, 0);                         // an index comes from memory long before its row is needed

  const auto load = [&](int stage, int tile) {
    trace_step("[T1] gather");
    gather(s, w, stage, ahead);
    ahead = look_up(w, tile + 1);
  };
  // [load]
  const auto compute = [&](int stage, int tile) {
    trace_step("[T2] scores");
    float scores[16];
    ptx::wgmma_fence();
    issue_scores(scores, s.q, s.k[stage], warpgroup * kHalfKeys);
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_keep(scores);

    trace_step("[T3] softmax", 400);
    mask_scores(scores, __ballot_sync(0xffffffffu, s.valid[stage][warpgroup * kHalfKeys + t % 32]), t);
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
    issue_output(out, s.p, s.k[stage] + warpgroup * kHalfTiles, tile > 0);
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_keep(out);
  };
  pipelined_loop<kStages>((w.slots + kTileKeys - 1) / kTileKeys, load, compute);

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
  store_output(a, w, warpgroup * kDimV / 2, s.k[0] + warpgroup * kHalfTiles, t, out);
  // [finish]
}

static const char* unsupported(const SparseMlaFwdArgs& a) { return tensor_core_unsupported(a); }

static cudaError_t launch(const SparseMlaFwdArgs& a, cudaStream_t stream) {
  const int64_t ctas = mla_work_count(a);
  if (ctas == 0) return cudaSuccess;
  return dsa::launch(kernel, {dim3(unsigned(ctas)), dim3(kThreads), sizeof(SharedStorage), stream}, a);
}

static const Register<SparseMlaFwdArgs, unsupported, launch> registered{
    "03_auto_pipelined", "a template overlaps the gather with the products", Accuracy::kBf16, Repeatable::kYes};

}  // namespace dsa::sparse_mla_fwd_03
