/// @file sparse_mla_fwd_03_scores_first.cu
/// Exercise: the pipeline of rung 3 with compute cut in two, so that the tensor cores have work while the threads copy.
/// About 12 lines are missing.
///
///     mkdir ~/my_kernels && cp walkthrough/exercises/sparse_mla_fwd_03_scores_first.cu ~/my_kernels/
///     cmake -B build -DDSA_USER_KERNELS=$HOME/my_kernels && cmake --build build
///     build/bin/dsa check --stage sparse_mla_fwd --step ex_scores_first --device emulator
///
/// The chapter (walkthrough/sparse_mla_fwd/03_auto_pipelined.md) has the solution.
#include "cuda/common/mla_products.cuh"
#include "cuda/common/register.cuh"
#include "cuda/device/trace.cuh"

namespace ex_scores_first {

using namespace dsa;

constexpr int kThreads = 256;                         // two warpgroups
constexpr int kStages = 2;
constexpr int kHalfKeys = kTileKeys / 2;              // of a warpgroup, in [T2]
constexpr int kHalfTiles = kVTiles / 2;               // of a warpgroup, in [T4]
constexpr int kRowsPerThread = kTileKeys / (kThreads / 8);

struct SharedStorage {
  ColumnTile q[kQKTiles];
  ColumnTile k[kStages][kQKTiles];                    // V in the first 8 tiles; at the end, the output
  ColumnTile p;
  float row_max[2][kTileHeads];                       // of the current tile, by warpgroup; at the end, row sums
  bool valid[kStages][kTileKeys];                     // the slot has a row
};
static_assert(sizeof(SharedStorage) <= kMaxSharedMemory);

/// For i = 0 .. n - 1, by all threads: load(stage, i) issues the copies of tile i, begin(stage, i) issues the products of
/// its scores and does not wait for them, finish(stage, i) waits and does the rest. kStages buffers, used in turn.
template <int kStages, class Load, class Begin, class Finish>
DSA_DEVICE void scores_first_loop(int n, const Load& load, const Begin& begin, const Finish& finish) {
  // ---- your code: about 12 lines ------------------------------------------------------------------------------
  // 1. Prologue: the first kStages - 1 tiles, a commit group each.
  // 2. Every turn: tile i has landed, for everybody, and the tensor cores may read it; nobody reads the buffer that
  //    is about to be overwritten.
  // 3. Then begin, load, finish, in an order that keeps the tensor cores busy while this thread issues its copies.
  (void)n, (void)load, (void)begin, (void)finish;
  // ---- end of your code ---------------------------------------------------------------------------------------
}

/// The rows that this thread gathers of a tile, -1 for none.
struct Rows { int row[kRowsPerThread]; };

DSA_DEVICE Rows look_up(const MlaWork& w, int tile) {
  Rows rows;
  for (int i = 0; i < kRowsPerThread; ++i)
    rows.row[i] = selected_row(w, tile * kTileKeys + int(threadIdx.x) / 8 + i * (kThreads / 8));
  return rows;
}

/// [T1] 8 threads per row, 16 bytes of each of its 9 column tiles per thread.
DSA_DEVICE void gather(SharedStorage& s, const MlaWork& w, int stage, const Rows& rows) {
  const int t = threadIdx.x;
  for (int i = 0; i < kRowsPerThread; ++i) {
    const int row = t / 8 + i * (kThreads / 8), source = rows.row[i];
    copy_row<kQKTiles>(s.k[stage], row, t % 8, kv_row(w, max(source, 0)), source >= 0);
    if (t % 8 == 0) s.valid[stage][row] = source >= 0;
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
  float scores[16];                                   // of the tile that begin() began
  float out[128] = {};
  Rows ahead = look_up(w, 0);

  const auto load = [&](int stage, int tile) {
    trace_step("[T1] gather");
    gather(s, w, stage, ahead);
    ahead = look_up(w, tile + 1);
  };
  const auto begin = [&](int stage, int) {
    trace_step("[T2] scores");
    ptx::wgmma_fence();
    issue_scores(scores, s.q, s.k[stage], warpgroup * kHalfKeys);
    ptx::wgmma_commit_group();
  };
  const auto finish = [&](int stage, int tile) {
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
  scores_first_loop<kStages>((w.slots + kTileKeys - 1) / kTileKeys, load, begin, finish);

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
}

static const char* unsupported(const SparseMlaFwdArgs& a) { return tensor_core_unsupported(a); }

static cudaError_t launch(const SparseMlaFwdArgs& a, cudaStream_t stream) {
  const int64_t ctas = mla_work_count(a);
  if (ctas == 0) return cudaSuccess;
  return dsa::launch(kernel, {dim3(unsigned(ctas)), dim3(kThreads), sizeof(SharedStorage), stream}, a);
}

static const Register<SparseMlaFwdArgs, unsupported, launch> registered{
    "ex_scores_first", "exercise: the scores are issued before the next gather", Accuracy::kBf16, Repeatable::kYes};

}  // namespace ex_scores_first
