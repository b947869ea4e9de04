/// @file 01_naive.cu
/// Quantisation to e4m3, rung 1: one warp per row, two passes over it.
///
/// | before        | reference/quantize.cpp: the same arithmetic                          |
/// |---------------|---------------------------------------------------------------------|
/// | **this rung** | amax by a warp butterfly, then divide and convert                    |
/// | next          | 02: one read, wide loads                                            |
/// | chapter       | @ref quantize_01                                                    |
///
///     [Q1] amax = max |x[i, :]|;  scale = max(amax, 1e-4) / 448, rounded up to a power of two if asked
///     [Q2] bytes[i, j] = e4m3(x[i, j] / scale)
///
/// Shared memory  none.
#include "../common/quantize_scale.cuh"
#include "../common/register.cuh"

namespace dsa::quantize_01 {

constexpr int kThreads = 128;
constexpr int kRows = kThreads / 32;             ///< rows of one CTA: one per warp

DSA_DEVICE float value_of(float x) { return x; }
DSA_DEVICE float value_of(bf16 x) { return float_from(x); }

/// @tparam T float or bf16, the type of x
template <class T> static __global__ void __launch_bounds__(kThreads) kernel(const QuantizeArgs a, const T* x) {
  const int lane = threadIdx.x % 32;
  const int64_t row = int64_t(blockIdx.x) * kRows + threadIdx.x / 32;
  if (row >= a.rows) return;                     // the whole warp leaves together
  x += row * a.n;
  e4m3* bytes = a.bytes + row * a.n;

  // [amax]
  // [Q1]
  float amax = 0;
  for (int j = lane; j < a.n; j += 32) amax = larger_magnitude(amax, value_of(x[j]));
  for (int distance = 16; distance > 0; distance /= 2)
    amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, distance));
  const float scale = scale_of(amax, a.mode);
  if (lane == 0) a.scale[row] = scale;
  // [amax]

  // [divide]
  // [Q2] A division, not a multiplication by the reciprocal: 1/scale is rounded, and would move bytes.
  for (int j = lane; j < a.n; j += 32) bytes[j] = e4m3_from(value_of(x[j]) / scale);
  // [divide]
}

static const char* unsupported(const QuantizeArgs& a) {
  if ((a.rows + kRows - 1) / kRows > 0x7fffffff) return "rows must be below 2^33 (one CTA per four)";
  return nullptr;
}

static cudaError_t launch(const QuantizeArgs& a, cudaStream_t stream) {
  if (a.rows == 0) return cudaSuccess;
  const LaunchConfig config{dim3(unsigned((a.rows + kRows - 1) / kRows)), dim3(kThreads), 0, stream};
  return a.x_bf16 ? dsa::launch(kernel<bf16>, config, a, a.x_bf16) : dsa::launch(kernel<float>, config, a, a.x_f32);
}

static const Register<QuantizeArgs, unsupported, launch> registered{
    "01_naive", "one warp per row, two reads of it", Accuracy::kExact, Repeatable::kYes};

}  // namespace dsa::quantize_01
