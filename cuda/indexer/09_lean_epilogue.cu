/// @file 09_lean_epilogue.cu
/// Lightning indexer, rung 9: the sum over heads with almost nothing in it but ReLU, weight and addition.
///
/// | before        | 08_balanced.cu: a thread sums both queries of the block and passes most of it on: 3 shuffles      |
/// |---------------|--------------------------------------------------------------------------------------------------|
/// | **this rung** | columns in another order: a thread sums one query, 1 shuffle for 64 heads, none for 32; the ReLU   |
/// |               | is a saturating multiplication, which the pipe of the additions does at its full rate             |
/// | next          | your own: walkthrough/your_kernel                                                                |
/// | reference     | reference/indexer.cpp                                                                            |
/// | chapter       | @ref indexer_09                                                                                  |
///
///     warpgroup 4, warp 0: producer                warpgroups 0 to 3: every fourth granule of the CTA's
///     ---------------------------------            ---------------------------------------------------
///     [P1] wait q_empty[r]                         [C1] wait q_full[r]; 32 weights -> registers
///          q, weights -> q[r]   (windows by hand)
///     [P2] next tile that somebody sees            [C2] wait k_full[s]; if a granule is for us: S = K Q^T
///          wait k_empty[s]; 1 to 4 granules,            give k[s]
///          scales -> k[s]       (tile by hand)     [C3] ReLU, weight, sum, key scale, store; give q[r] at the end
///
///     warpgroup 4, warps 1 to 3, clean mode        Whose heads 8 columns of S are, by thread of a quad:
///     ---------------------------------
///     [F1] between and outside the tiles:                          thread 0    1       2       3
///          -inf, 16 bytes at a time                    before      q0 q0 | q0 q0 | q0 q0 | q0 q0, later q1
///                                                      64 heads    q0 q0 | q0 q0 | q1 q1 | q1 q1
///                                                      32 heads    q0 q0 | q1 q1 | q2 q2 | q3 q3
///
/// Roles          in cuda/common/indexer_lean.cuh, because index_topk scores with them too.
/// Columns        a product does not care in which order they come. q is a tensor of four dimensions to the copy, so that the
///                next few heads of all queries of the block make 8 rows, the swizzle's atom, and then the few after them.
/// ReLU           FMUL.SAT instead of FMNMX: x 2^-25 saturated to [0, 1], exact; 2^25 goes back into the sum (relu_scaled()).
/// Expected       205 instructions per 64 x 128 tile and warp instead of 216 (32 heads of 64: 197 instead of 244), none of the 64
///                maxima left on a pipe of half rate: 0.125 ms (4096 causal), 1.74 at 4096 x 32768; with 32 heads 15 % less.
/// Shared memory  q 3 x 16 KiB + k 3 x 32 KiB + scales 3 KiB + weights 2 KiB = 149 KiB of 227 KiB: 1 CTA per SM.
/// Registers      math 112, others 32: 512 * 112 + 128 * 32 = 61440 = 640 * 96, what the CTA is launched with.
#include "../common/indexer_lean.cuh"
#include "../common/register.cuh"

namespace dsa::indexer_09 {

template <class Shape>
static __global__ void __launch_bounds__(kScoringThreads, 1)
    kernel(const IndexerArgs a, const __grid_constant__ IndexerMaps maps, const Pieces pieces) {
  score_pieces<Shape>(a, maps, pieces);
}

static const char* unsupported(const IndexerArgs& a) { return scoring_unsupported(a); }

static cudaError_t launch(const IndexerArgs& a, cudaStream_t stream) {
  if (a.s_q == 0 || a.s_kv == 0) return cudaSuccess;
  return launch_scoring([](auto shape) { return kernel<decltype(shape)>; }, a, make_pieces(a, sm_count()), stream);
}

static const Register<IndexerArgs, unsupported, launch> registered{
    "09_lean_epilogue", "a thread sums one query only; the ReLU rides on a multiplication", Accuracy::kFp8, Repeatable::kYes};

}  // namespace dsa::indexer_09
