/// @file quantize_01_cta_per_row.cu
/// Exercise: a CTA per row instead of a warp. [Q1] needs the maximum over four warps. About 12 lines are missing.
///
///     mkdir ~/my_kernels && cp walkthrough/exercises/quantize_01_cta_per_row.cu ~/my_kernels/
///     cmake -B build -DDSA_USER_KERNELS=$HOME/my_kernels && cmake --build build
///     build/bin/dsa check --stage quantize --step ex_cta_per_row --device emulator
///
/// The chapter (walkthrough/quantize/01_naive.md) has the solution.
#include "cuda/common/quantize_scale.cuh"
#include "cuda/common/register.cuh"

namespace ex_cta_per_row {

using namespace dsa;

constexpr int kThreads = 128;                    // all of one row

struct SharedStorage {
  float partial[kThreads / 32];                  // one maximum per warp
};

DSA_DEVICE float value_of(float x) { return x; }
DSA_DEVICE float value_of(bf16 x) { return float_from(x); }

/// The largest of all threads' `value`, in every thread. All threads of the CTA must call it.
DSA_DEVICE float block_max(float value, SharedStorage& s) {
  // ---- your code: about 12 lines ------------------------------------------------------------------------------
  // 1. a butterfly of __shfl_xor_sync, so that every lane holds the maximum of its warp;
  // 2. one lane of each warp stores it in s.partial;
  // 3. when all four have been stored, every thread reads all four.
  (void)s;
  return value;
  // ---- end of your code ---------------------------------------------------------------------------------------
}

template <class T> static __global__ void __launch_bounds__(kThreads) kernel(const QuantizeArgs a, const T* x) {
  SharedStorage& s = shared_memory<SharedStorage>();
  const int64_t row = blockIdx.x;
  x += row * a.n;
  e4m3* bytes = a.bytes + row * a.n;

  // [Q1]
  float amax = 0;
  for (int j = threadIdx.x; j < a.n; j += kThreads) amax = larger_magnitude(amax, value_of(x[j]));
  const float scale = scale_of(block_max(amax, s), a.mode);
  if (threadIdx.x == 0) a.scale[row] = scale;

  // [Q2]
  for (int j = threadIdx.x; j < a.n; j += kThreads) bytes[j] = e4m3_from(value_of(x[j]) / scale);
}

static const char* unsupported(const QuantizeArgs& a) {
  if (a.rows > 0x7fffffff) return "rows must be below 2^31 (one CTA each)";
  return nullptr;
}

static cudaError_t launch(const QuantizeArgs& a, cudaStream_t stream) {
  if (a.rows == 0) return cudaSuccess;
  const LaunchConfig config{dim3(unsigned(a.rows)), dim3(kThreads), sizeof(SharedStorage), stream};
  return a.x_bf16 ? dsa::launch(kernel<bf16>, config, a, a.x_bf16) : dsa::launch(kernel<float>, config, a, a.x_f32);
}

static const Register<QuantizeArgs, unsupported, launch> registered{
    "ex_cta_per_row", "exercise: one CTA per row", Accuracy::kExact, Repeatable::kYes};

}  // namespace ex_cta_per_row
