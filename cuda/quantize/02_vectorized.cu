/// @file 02_vectorized.cu
/// Quantisation to e4m3, rung 2: one read of the row, 16 bytes per load, all of a row's loads on their way at once.
///
/// | before        | 01_naive.cu: two reads, the second out of L1 or L2, 2 or 4 bytes per load                        |
/// |---------------|--------------------------------------------------------------------------------------------------|
/// | **this rung** | 8 lanes hold a row (32 from 577 values on); amax over the registers, 3 shuffles; 8 bytes per store |
/// | next          | 03_one_reciprocal.cu: the division is what costs most of the remaining instructions              |
/// | reference     | reference/quantize.cpp                                                                           |
/// | chapter       | @ref quantize_02                                                                                 |
///
///     [Q1] row -> registers                       n / 64 loads of 16 bytes per lane (bf16)
///     [Q2] amax, scale                            in the lane, then over the row's lanes
///     [Q3] bytes = e4m3(x / scale)                8 values per store
///
/// Expected       131072 x 576 bf16: 151 MB in, 75 MB out; 227 MB at 4.2 TB/s = 54 us, if the 17 instructions per value (10 of
///                them the division; 43 us of issue slots) hide behind it; they do so only in part: 60 to 65 us.
///                Counted in nvcc 13.0's machine code: all that a warp executes for 4 aligned rows, 1225, by 72 values per lane.
/// Shared memory  none.
#include "../common/quantize_row.cuh"
#include "../common/register.cuh"
#include "../device/trace.cuh"

namespace dsa::quantize_02 {

/// @tparam T float or bf16, the type of x
template <class T, class Split>
static __global__ void __launch_bounds__(kRowThreads) kernel(const QuantizeArgs a, const T* x, const bool aligned) {
  const int lane = threadIdx.x % Split::kLanes;
  const int64_t row = int64_t(blockIdx.x) * kRowsPerCta<Split> + threadIdx.x / Split::kLanes;
  const bool valid = row < a.rows;                   // the others stay for the shuffles of their warp
  const int n = valid ? a.n : 0;

  trace_step("[Q1] row");
  RowPiece<T, Split> piece;
  load_row(piece, x + (valid ? row : 0) * a.n, n, aligned, lane);

  // [scale]
  trace_step("[Q2] scale", 100);
  const float scale = scale_of(row_amax(piece), a.mode);
  if (lane == 0 && valid) a.scale[row] = scale;
  // [scale]

  // [divide]
  trace_step("[Q3] bytes", 300);
  const auto divide = [&](float value) { return value / scale; };
  store_row(a.bytes + (valid ? row : 0) * a.n, piece, divide, n, aligned, lane);
  // [divide]
}

static const char* unsupported(const QuantizeArgs& a) { return row_split_unsupported(a); }

static cudaError_t launch(const QuantizeArgs& a, cudaStream_t stream) {
  if (a.rows == 0) return cudaSuccess;
  return with_row_split(a, [&](auto split) {
    using Split = decltype(split);
    constexpr int kRows = kRowsPerCta<Split>;
    const LaunchConfig config{dim3(unsigned((a.rows + kRows - 1) / kRows)), dim3(kRowThreads), 0, stream};
    return a.x_bf16 ? dsa::launch(kernel<bf16, Split>, config, a, a.x_bf16, rows_aligned(a))
                    : dsa::launch(kernel<float, Split>, config, a, a.x_f32, rows_aligned(a));
  });
}

static const Register<QuantizeArgs, unsupported, launch> registered{
    "02_vectorized", "one read, 16 bytes per load, 8 lanes per row", Accuracy::kExact, Repeatable::kYes};

}  // namespace dsa::quantize_02
