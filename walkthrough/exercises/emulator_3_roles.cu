/// @file emulator_3_roles.cu
/// Find the bug: pieces of a row again, now with a warp of its own to copy them. One line is missing.
///
///     mkdir ~/my_kernels && cp walkthrough/exercises/emulator_3_roles.cu ~/my_kernels/
///     cmake -B build -DDSA_USER_KERNELS=$HOME/my_kernels && cmake --build build
///     build/bin/dsa check --stage quantize --step ex_roles --device emulator [--schedule random --seed 1]
///
/// The chapter (walkthrough/03_no_gpu_needed.md) has the answer.
///
///     warp 4: producer                               warps 0 to 3: consumers
///     wait empty[s]                  <-------------  arrive empty[s], one lane for its warp
///     [P1] bulk copy of a piece      -- full[s] -->  wait full[s]
///     all pieces, and all once more                  [C1] amax        [C2] the second time: divide, convert
///                                                    [C3] the bytes leave together
#include "cuda/common/quantize_scale.cuh"
#include "cuda/common/register.cuh"
#include "cuda/common/ring.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/device/trace.cuh"

namespace ex_roles {

using namespace dsa;

constexpr int kStages = 3;
constexpr int kConsumers = 128, kThreads = kConsumers + 32;
constexpr int kPiece = kConsumers;               // numbers: one for each consumer
constexpr int kMaxColumns = 8192;
constexpr unsigned kMeet = 1;                    // named barrier of the consumers

template <class T> struct SharedStorage {
  alignas(16) T piece[kStages][kPiece];
  alignas(16) e4m3 bytes[kMaxColumns];           // the result on its way out
  float partial[kConsumers / 32];
  ptx::mbarrier full[kStages];                   // 1 arrival, and the bytes of the piece
  ptx::mbarrier empty[kStages];                  // 4 arrivals: one lane of each consumer warp
};

DSA_DEVICE float value_of(float x) { return x; }
DSA_DEVICE float value_of(bf16 x) { return float_from(x); }

template <class T> DSA_DEVICE void produce(SharedStorage<T>& s, const T* x, int n) {
  auto at = RingPosition<kStages>::producer();
  const int pieces = (n + kPiece - 1) / kPiece;
  for (int turn = 0; turn < 2 * pieces; ++turn, at.advance()) {
    const int first = turn % pieces * kPiece;
    const unsigned bytes = unsigned(min(kPiece, n - first) * int(sizeof(T)));
    trace_step("[P1] copy");
    ptx::mbarrier_wait_parity(&s.empty[at.stage], at.parity);
    ptx::mbarrier_arrive_expect_tx(&s.full[at.stage], bytes);
    ptx::cp_async_bulk_load(s.piece[at.stage], x + first, bytes, &s.full[at.stage]);
  }
}

/// This thread's number of the next piece, 0 past the end of the row.
template <class T> DSA_DEVICE float next_number(SharedStorage<T>& s, bool inside, RingPosition<kStages>& at) {
  ptx::mbarrier_wait_parity(&s.full[at.stage], at.parity);
  const float value = inside ? value_of(s.piece[at.stage][threadIdx.x]) : 0.0f;
  ptx::fence_proxy_async_shared();               // it is there before the next copy
  if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&s.empty[at.stage]);
  at.advance();
  return value;
}

template <class T> DSA_DEVICE void consume(SharedStorage<T>& s, const QuantizeArgs& a) {
  const int t = threadIdx.x;
  auto at = RingPosition<kStages>::consumer();
  trace_step("[C1] amax");
  float amax = 0;
  for (int j = t; j - t < a.n; j += kPiece) amax = larger_magnitude(amax, next_number(s, j < a.n, at));
  for (int distance = 16; distance > 0; distance /= 2)
    amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, distance));
  if (t % 32 == 0) s.partial[t / 32] = amax;
  ptx::barrier_sync(kMeet, kConsumers);
  for (float partial : s.partial) amax = fmaxf(amax, partial);
  const float scale = scale_of(amax, a.mode);
  if (t == 0) a.scale[blockIdx.x] = scale;

  trace_step("[C2] divide");
  for (int j = t; j - t < a.n; j += kPiece) {
    const float value = next_number(s, j < a.n, at);
    if (j < a.n) s.bytes[j] = e4m3_from(value / scale);
  }

  trace_step("[C3] store");
  ptx::fence_proxy_async_shared();               // the bulk copy reads what all of these threads wrote
  ptx::barrier_sync(kMeet, kConsumers);
  if (t > 0) return;
  ptx::cp_async_bulk_store(a.bytes + int64_t(blockIdx.x) * a.n, s.bytes, unsigned(a.n));
  ptx::cp_async_bulk_commit_group();
  ptx::cp_async_bulk_wait_group_read<0>();
}

template <class T> static __global__ void __launch_bounds__(kThreads) kernel(const QuantizeArgs a, const T* x) {
  auto& s = shared_memory<SharedStorage<T>>();
  trace_role(threadIdx.x < kConsumers ? "consumers" : "producer");
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) ptx::mbarrier_init(&s.full[i], 1);
    for (int i = 0; i < kStages; ++i) ptx::mbarrier_init(&s.empty[i], kConsumers / 32);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x < kConsumers) consume(s, a);
  else if (threadIdx.x == kConsumers) produce(s, x + int64_t(blockIdx.x) * a.n, a.n);
}

static const char* unsupported(const QuantizeArgs& a) {
  if (a.n > kMaxColumns || a.n % 16 != 0) return "n must be a multiple of 16, at most 8192";
  if (a.rows > 0x7fffffff) return "rows must be below 2^31 (one CTA each)";
  return nullptr;
}

static cudaError_t launch(const QuantizeArgs& a, cudaStream_t stream) {
  if (a.rows == 0) return cudaSuccess;
  const LaunchConfig config{dim3(unsigned(a.rows)), dim3(kThreads), sizeof(SharedStorage<float>), stream};
  return a.x_bf16 ? dsa::launch(kernel<bf16>, config, a, a.x_bf16) : dsa::launch(kernel<float>, config, a, a.x_f32);
}

static const Register<QuantizeArgs, unsupported, launch> registered{
    "ex_roles", "exercise: find the bug, 3 of 3", Accuracy::kExact, Repeatable::kYes};

}  // namespace ex_roles
