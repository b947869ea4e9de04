/// @file emulator_1_copied_rows.cu
/// Find the bug: one warp copies rows into a ring, another quantises them. One line is wrong.
///
///     mkdir ~/my_kernels && cp walkthrough/exercises/emulator_1_copied_rows.cu ~/my_kernels/
///     cmake -B build -DDSA_USER_KERNELS=$HOME/my_kernels && cmake --build build
///     build/bin/dsa check --stage quantize --step ex_copied_rows --device emulator
///
/// The chapter (walkthrough/03_no_gpu_needed.md) has the answer.
///
///     warp 0: producer                                 warp 1: consumer
///     wait empty[s]                  <---------------  arrive empty[s]
///     [P1] copy a row with cp.async  -- full[s] ---->  wait full[s]
///                                                      [C1] amax, scale
///                                                      [C2] divide, convert
#include "cuda/common/quantize_scale.cuh"
#include "cuda/common/register.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/device/trace.cuh"

namespace ex_copied_rows {

using namespace dsa;

constexpr int kStages = 2;
constexpr int kRows = 8;                         // of one CTA
constexpr int kMaxColumns = 1024;

template <class T> struct SharedStorage {
  alignas(16) T row[kStages][kMaxColumns];
  ptx::mbarrier full[kStages];                   // 32 arrivals: each producer lane's copies, when they have landed
  ptx::mbarrier empty[kStages];                  // 32 arrivals: each consumer lane, when it has read the row
};

DSA_DEVICE float value_of(float x) { return x; }
DSA_DEVICE float value_of(bf16 x) { return float_from(x); }

template <class T> DSA_DEVICE void produce(SharedStorage<T>& s, const T* x, int n, int rows) {
  trace_role("producer");
  constexpr int kPiece = 16 / sizeof(T);         // what one cp.async moves
  for (int i = 0; i < rows; ++i, x += n) {
    const int stage = i % kStages;
    trace_step("[P1] copy");
    ptx::mbarrier_wait_parity(&s.empty[stage], (i / kStages & 1) ^ 1);
    for (int j = int(threadIdx.x) * kPiece; j < n; j += 32 * kPiece) ptx::cp_async_16(&s.row[stage][j], x + j);
    ptx::cp_async_mbarrier_arrive(&s.full[stage]);
  }
}

template <class T>
DSA_DEVICE void consume(SharedStorage<T>& s, e4m3* bytes, float* scales, int n, int rows, ScaleMode mode) {
  trace_role("consumer");
  const int lane = threadIdx.x % 32;
  for (int i = 0; i < rows; ++i, bytes += n) {
    const int stage = i % kStages;
    const T* row = s.row[stage];
    trace_step("[C1] amax");
    ptx::mbarrier_wait_parity(&s.full[stage], i / kStages & 1);
    float amax = 0;
    for (int j = lane; j < n; j += 32) amax = larger_magnitude(amax, value_of(row[j]));
    for (int distance = 16; distance > 0; distance /= 2)
      amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, distance));
    const float scale = scale_of(amax, mode);
    if (lane == 0) scales[i] = scale;
    trace_step("[C2] divide");
    for (int j = lane; j < n; j += 32) bytes[j] = e4m3_from(value_of(row[j]) / scale);
    ptx::mbarrier_arrive(&s.empty[stage]);
  }
}

template <class T> static __global__ void __launch_bounds__(64) kernel(const QuantizeArgs a, const T* x) {
  auto& s = shared_memory<SharedStorage<T>>();
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(&s.full[i], 32);
      ptx::mbarrier_init(&s.empty[i], 32);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  const int64_t first = int64_t(blockIdx.x) * kRows;
  const int rows = a.rows - first < kRows ? int(a.rows - first) : kRows;
  if (threadIdx.x < 32) produce(s, x + first * a.n, a.n, rows);
  else consume(s, a.bytes + first * a.n, a.scale + first, a.n, rows, a.mode);
}

static const char* unsupported(const QuantizeArgs& a) {
  if (a.n > kMaxColumns || a.n % 8 != 0) return "n must be a multiple of 8, at most 1024";
  if ((a.rows + kRows - 1) / kRows > 0x7fffffff) return "rows must be below 2^34 (one CTA for eight)";
  return nullptr;
}

static cudaError_t launch(const QuantizeArgs& a, cudaStream_t stream) {
  if (a.rows == 0) return cudaSuccess;
  const auto ctas = unsigned((a.rows + kRows - 1) / kRows);
  const LaunchConfig config{dim3(ctas), dim3(64), sizeof(SharedStorage<float>), stream};   // enough for bf16 too
  return a.x_bf16 ? dsa::launch(kernel<bf16>, config, a, a.x_bf16) : dsa::launch(kernel<float>, config, a, a.x_f32);
}

static const Register<QuantizeArgs, unsupported, launch> registered{
    "ex_copied_rows", "exercise: find the bug, 1 of 3", Accuracy::kExact, Repeatable::kYes};

}  // namespace ex_copied_rows
