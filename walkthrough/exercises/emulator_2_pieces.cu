/// @file emulator_2_pieces.cu
/// Find the bug: a row comes in pieces through a ring, twice, so that it may be of any length. One line is wrong.
///
///     mkdir ~/my_kernels && cp walkthrough/exercises/emulator_2_pieces.cu ~/my_kernels/
///     cmake -B build -DDSA_USER_KERNELS=$HOME/my_kernels && cmake --build build
///     build/bin/dsa check --stage quantize --step ex_pieces --device emulator
///
/// The chapter (walkthrough/03_no_gpu_needed.md) has the answer.
///
///     all threads                                      thread 0 besides
///     wait full[s]                                     before the loop: load pieces 0 and 1
///     [Q1] amax of a piece, for all pieces             behind every piece: refill its stage with
///     [Q2] once more for all: divide, convert          the piece two turns ahead
#include "cuda/common/quantize_scale.cuh"
#include "cuda/common/register.cuh"
#include "cuda/common/ring.cuh"
#include "cuda/device/ptx.cuh"
#include "cuda/device/trace.cuh"

namespace ex_pieces {

using namespace dsa;

constexpr int kStages = 2;
constexpr int kThreads = 128;                    // all of one row
constexpr int kPiece = kThreads;                 // numbers: one for each thread

template <class T> struct SharedStorage {
  alignas(16) T piece[kStages][kPiece];
  float partial[kThreads / 32];                  // one maximum per warp
  ptx::mbarrier full[kStages];                   // 1 arrival, and the bytes of the piece
};

template <class T> struct Row {
  const T* x;
  int n, pieces;
};

DSA_DEVICE float value_of(float x) { return x; }
DSA_DEVICE float value_of(bf16 x) { return float_from(x); }

/// Turn t brings piece t of the row, and after the last piece the first one again. One thread.
template <class T> DSA_DEVICE void load(SharedStorage<T>& s, const Row<T>& row, int turn) {
  if (turn >= 2 * row.pieces) return;
  const int first = turn % row.pieces * kPiece;
  const unsigned bytes = unsigned(min(kPiece, row.n - first) * int(sizeof(T)));
  ptx::mbarrier_arrive_expect_tx(&s.full[turn % kStages], bytes);
  ptx::cp_async_bulk_load(s.piece[turn % kStages], row.x + first, bytes, &s.full[turn % kStages]);
}

/// This thread's number of the next piece, 0 past the end of the row. The stage that it lay in is filled again.
template <class T>
DSA_DEVICE float next_number(SharedStorage<T>& s, const Row<T>& row, int j, int turn, RingPosition<kStages>& at) {
  ptx::mbarrier_wait_parity(&s.full[at.stage], at.parity);
  const float value = j < row.n ? value_of(s.piece[at.stage][threadIdx.x]) : 0.0f;
  ptx::fence_proxy_async_shared();               // it is there before the next copy
  __syncthreads();                               // everybody has taken its own
  if (threadIdx.x == 0) load(s, row, turn + kStages);
  at.advance();
  return value;
}

/// The largest of all threads' `value`, in every thread.
template <class T> DSA_DEVICE float block_max(float value, SharedStorage<T>& s) {
  for (int distance = 16; distance > 0; distance /= 2)
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, distance));
  if (threadIdx.x % 32 == 0) s.partial[threadIdx.x / 32] = value;
  __syncthreads();
  for (float partial : s.partial) value = fmaxf(value, partial);
  return value;
}

template <class T> static __global__ void __launch_bounds__(kThreads) kernel(const QuantizeArgs a, const T* x) {
  auto& s = shared_memory<SharedStorage<T>>();
  const int t = threadIdx.x;
  const Row<T> row{x + int64_t(blockIdx.x) * a.n, a.n, (a.n + kPiece - 1) / kPiece};
  e4m3* bytes = a.bytes + int64_t(blockIdx.x) * a.n;
  if (t == 0) {
    for (int i = 0; i < kStages; ++i) ptx::mbarrier_init(&s.full[i], 1);
    ptx::fence_mbarrier_init();
    for (int turn = 0; turn < kStages; ++turn) load(s, row, turn);
  }
  __syncthreads();

  trace_step("[Q1] amax");
  auto at = RingPosition<kStages>::consumer();
  int turn = 0;
  float amax = 0;
  for (int j = t; j < row.pieces * kPiece; j += kPiece, ++turn)
    amax = larger_magnitude(amax, next_number(s, row, j, turn, at));
  const float scale = scale_of(block_max(amax, s), a.mode);
  if (t == 0) a.scale[blockIdx.x] = scale;

  trace_step("[Q2] divide");
  at = RingPosition<kStages>::consumer();        // the row from its beginning
  for (int j = t; j < row.pieces * kPiece; j += kPiece, ++turn) {
    const float value = next_number(s, row, j, turn, at);
    if (j < row.n) bytes[j] = e4m3_from(value / scale);
  }
}

static const char* unsupported(const QuantizeArgs& a) {
  if (a.n % 8 != 0) return "n must be a multiple of 8";
  if (a.rows > 0x7fffffff) return "rows must be below 2^31 (one CTA each)";
  return nullptr;
}

static cudaError_t launch(const QuantizeArgs& a, cudaStream_t stream) {
  if (a.rows == 0) return cudaSuccess;
  const LaunchConfig config{dim3(unsigned(a.rows)), dim3(kThreads), sizeof(SharedStorage<float>), stream};
  return a.x_bf16 ? dsa::launch(kernel<bf16>, config, a, a.x_bf16) : dsa::launch(kernel<float>, config, a, a.x_f32);
}

static const Register<QuantizeArgs, unsupported, launch> registered{
    "ex_pieces", "exercise: find the bug, 2 of 3", Accuracy::kExact, Repeatable::kYes};

}  // namespace ex_pieces
