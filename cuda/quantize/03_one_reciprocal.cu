/// @file 03_one_reciprocal.cu
/// Quantisation to e4m3, rung 3: a row divides once; its values are multiplied, and corrected so that no byte differs.
///
/// | before        | 02_vectorized.cu: an exact division per value, 10 instructions                                   |
/// |---------------|--------------------------------------------------------------------------------------------------|
/// | **this rung** | r = 1 / scale once per row; q = x r, then one correction: the bytes of the division               |
/// | next          |                                                                                                  |
/// | reference     | reference/quantize.cpp                                                                           |
/// | chapter       | @ref quantize_03                                                                                 |
///
///     [Q1] row -> registers                       n / 64 loads of 16 bytes per lane (bf16)
///     [Q2] amax, scale, reciprocal                in the lane, then over the row's lanes
///     [Q3] bytes = e4m3(x / scale)                q0 = x r;  excess = q0 scale - x;  q = q0 - excess r
///
/// Why exact      q0 alone is up to 1.5 units in the last place off and moves one byte in thirteen of those that are next to a
///                boundary. The excess is exact in FMA, so q carries the rounding of the true quotient. Checked for all 2^23
///                mantissas of scale x all 16 mantissas of a boundary between two e4m3 values x the 7 nearest x: no difference.
/// Expected       131072 x 576 bf16: 227 MB at 4.2 TB/s = 54 us, 11.3 instructions per value instead of 17 (29 us): 55 to 58 us.
///                Counted in nvcc 13.0's machine code: all that a warp executes for 4 aligned rows, 815, by 72 values per lane.
/// Shared memory  none.
#include "../common/quantize_row.cuh"
#include "../common/register.cuh"
#include "../device/trace.cuh"

namespace dsa::quantize_03 {

/// x / scale, as far as e4m3 can tell.
/// @param x           |x| <= 448.1 scale, or not finite: then the estimate is as infinite as x / scale, but the excess is NaN
/// @param reciprocal  1 / scale, correctly rounded
// [quotient]
DSA_DEVICE float quotient(float x, float scale, float reciprocal) {
  const float estimate = x * reciprocal;
  const float excess = fmaf(estimate, scale, -x);    // exact. With this sign a zero keeps its own: -0 - (+0 r) = -0
  const float corrected = fmaf(-excess, reciprocal, estimate);
  return fabsf(estimate) < INFINITY ? corrected : estimate;
}
// [quotient]

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
  const float scale = scale_of(row_amax(piece), a.mode), reciprocal = 1.0f / scale;
  if (lane == 0 && valid) a.scale[row] = scale;
  // [scale]

  // [divide]
  trace_step("[Q3] bytes", 300);
  const auto divide = [&](float value) { return quotient(value, scale, reciprocal); };
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
    "03_one_reciprocal", "one division per row, bytes as if each value had one", Accuracy::kExact, Repeatable::kYes};

}  // namespace dsa::quantize_03
