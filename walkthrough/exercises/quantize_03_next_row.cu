/// @file quantize_03_next_row.cu
/// Exercise: a warp takes several turns and asks for its next rows before it divides these. About 8 lines are missing.
///
///     mkdir ~/my_kernels && cp walkthrough/exercises/quantize_03_next_row.cu ~/my_kernels/
///     cmake -B build -DDSA_USER_KERNELS=$HOME/my_kernels && cmake --build build
///     build/bin/dsa check --stage quantize --step ex_next_row --device emulator
///
/// The chapter (walkthrough/quantize/03_one_reciprocal.md) has the solution.
#include "cuda/common/quantize_row.cuh"
#include "cuda/common/register.cuh"

namespace ex_next_row {

using namespace dsa;

constexpr int kThreads = 32;                         // one warp
constexpr int kTurns = 4;
template <class Split> constexpr int kRowsPerTurn = kThreads / Split::kLanes;

/// x / scale, as far as e4m3 can tell: as in rung 3.
DSA_DEVICE float quotient(float x, float scale, float reciprocal) {
  const float estimate = x * reciprocal;
  const float excess = fmaf(estimate, scale, -x);
  const float corrected = fmaf(-excess, reciprocal, estimate);
  return fabsf(estimate) < INFINITY ? corrected : estimate;
}

/// For turn = 0 .. kTurns - 1: load(piece, turn) asks for the rows of a turn, finish(piece, turn) uses them.
/// A turn past the last may be loaded: it has no rows, so nothing is read.
template <class Piece, class Load, class Finish> DSA_DEVICE void turns(const Load& load, const Finish& finish) {
  // ---- your code: about 8 lines -------------------------------------------------------------------------------
  // Two pieces: the one that is used, and the next one, which is asked for before the other is used.
  (void)load, (void)finish;
  // ---- end of your code ---------------------------------------------------------------------------------------
}

template <class T, class Split>
static __global__ void __launch_bounds__(kThreads) kernel(const QuantizeArgs a, const T* x, const bool aligned) {
  using Piece = RowPiece<T, Split>;
  const int lane = threadIdx.x % Split::kLanes;
  const auto row_of = [&](int turn) {                // -1 if there is none
    const int64_t row = (int64_t(blockIdx.x) * kTurns + turn) * kRowsPerTurn<Split> + threadIdx.x / Split::kLanes;
    return turn < kTurns && row < a.rows ? row : -1;
  };
  const auto load = [&](Piece& piece, int turn) {
    const int64_t row = row_of(turn);
    load_row(piece, x + (row >= 0 ? row : 0) * a.n, row >= 0 ? a.n : 0, aligned, lane);
  };
  const auto finish = [&](const Piece& piece, int turn) {
    const int64_t row = row_of(turn);
    const float scale = scale_of(row_amax(piece), a.mode), reciprocal = 1.0f / scale;
    if (lane == 0 && row >= 0) a.scale[row] = scale;
    const auto divide = [&](float value) { return quotient(value, scale, reciprocal); };
    store_row(a.bytes + (row >= 0 ? row : 0) * a.n, piece, divide, row >= 0 ? a.n : 0, aligned, lane);
  };
  turns<Piece>(load, finish);
}

static const char* unsupported(const QuantizeArgs& a) { return row_split_unsupported(a); }

static cudaError_t launch(const QuantizeArgs& a, cudaStream_t stream) {
  if (a.rows == 0) return cudaSuccess;
  return with_row_split(a, [&](auto split) {
    using Split = decltype(split);
    constexpr int kRows = kRowsPerTurn<Split> * kTurns;
    const LaunchConfig config{dim3(unsigned((a.rows + kRows - 1) / kRows)), dim3(kThreads), 0, stream};
    return a.x_bf16 ? dsa::launch(kernel<bf16, Split>, config, a, a.x_bf16, rows_aligned(a))
                    : dsa::launch(kernel<float, Split>, config, a, a.x_f32, rows_aligned(a));
  });
}

static const Register<QuantizeArgs, unsupported, launch> registered{
    "ex_next_row", "exercise: the next rows are asked for before these are divided", Accuracy::kExact, Repeatable::kYes};

}  // namespace ex_next_row
