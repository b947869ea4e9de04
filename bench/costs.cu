/// @file costs.cu
/// What the parts of a forward kernel cost by themselves and beside each other, in clocks of one SM.
///
///     costs            # a table; docs/results/h200_costs.txt is what an H200 printed
///
/// Two warpgroups do one thing each, over and over, while a third gathers rows or rests. The predictions of the chapters on
/// sparse MLA are made of these numbers. Only clocks are counted, and the data is of no importance.
#include <cstdio>
#include <cstdlib>
#include <type_traits>

#include "../cuda/common/half_tile.cuh"
#include "../cuda/common/late_softmax.cuh"
#include "../cuda/common/mla_products.cuh"

namespace {

using namespace dsa;

struct SharedStorage {
  ColumnTile q[kQKTiles];
  KeyTile k;
  KeyTile gathered;
  HalfState half;                      ///< its phase before the first is always complete
  Raise raise;
  int done;                            ///< the gathering warpgroup may stop
};

// ---- What a warpgroup can do: `run` does it once, and waits until it is done -------------------------------------------
struct Nothing {
  static constexpr const char* kName = "";
};

template <int kN, bool kFromRegisters> struct Scores {
  static constexpr const char* kName = kFromRegisters ? "scores, 36 m64n64, A from registers"
                                       : kN == 64     ? "scores, 36 m64n64"
                                                      : "scores of 128 keys, 36 m64n128";
  float d[kN / 2] = {};
  uint32_t a[4] = {};
  DSA_DEVICE void run(SharedStorage& s, int) {
    ptx::wgmma_keep(d);
    ptx::wgmma_keep(a);
    ptx::wgmma_fence();
    if constexpr (kN == 64 && !kFromRegisters) {
      issue_scores(d, s.q, s.k.k, 0, true);
    } else {
      const uint64_t q = ptx::matrix_descriptor(s.q, ptx::Swizzle::k128B, 16, 1024);
      const uint64_t k = ptx::matrix_descriptor(s.k.k, ptx::Swizzle::k128B, 16, 1024);
#pragma unroll
      for (int step = 0; step < 4 * kQKTiles; ++step) {
        const unsigned further = step / 4 * kColumnTileBytes + step % 4 * 32;
        if constexpr (kFromRegisters) ptx::wgmma_m64n64k16_bf16_rs<false>(d, a, ptx::descriptor_advance(k, further), true);
        else ptx::wgmma_m64n128k16_bf16_ss<false, false>(d, ptx::descriptor_advance(q, further),
                                                         ptx::descriptor_advance(k, further % (8 * kColumnTileBytes)), true);
      }
    }
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_keep(d);
  }
  DSA_DEVICE float result() const { return d[0]; }
};

template <bool kFromRegisters> struct Output {
  static constexpr const char* kName = kFromRegisters ? "output, 4 m64n256, P from registers" : "output, 4 m64n256";
  float d[128] = {};
  uint32_t p[4][4] = {};
  DSA_DEVICE void run(SharedStorage& s, int) {
    ptx::wgmma_keep(d);
    for (int i = 0; i < 4; ++i) ptx::wgmma_keep(p[i]);
    ptx::wgmma_fence();
    if constexpr (kFromRegisters) issue_output(d, p, s.k.k, true);
    else issue_output(d, s.q[0], s.k.k, true);
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_keep(d);
  }
  DSA_DEVICE float result() const { return d[0]; }
};

struct Softmax {
  static constexpr const char* kName = "softmax of 64 x 64 scores";
  LateSoftmax softmax{1.0f / 24};
  float score = 0;
  DSA_DEVICE void run(SharedStorage& s, int t) {
    float scores[32], largest[2], factor[2];
    uint32_t p[4][4];
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      scores[i] = score;
      asm volatile("" : "+f"(scores[i]));
    }
    softmax.find_largest(scores, largest);
    const bool raised = softmax.exceeds(largest);
    if (raised) softmax.raise(largest, factor);
    softmax.exponentiate_rows(scores);
    store_p(s.q[0], t, scores, p);
    softmax.tell(s.raise, t, raised, factor);
    for (int i = 0; i < 4; ++i) ptx::wgmma_keep(p[i]);
    softmax.add(scores);
  }
  DSA_DEVICE float result() const { return softmax.l[0] + softmax.l[1] + softmax.weight[0] + softmax.weight[1] + softmax.m[0]; }
};

struct Stores {
  static constexpr const char* kName = "4 stmatrix";
  uint32_t p[4][4] = {};
  DSA_DEVICE void run(SharedStorage& s, int t) {
    for (int step = 0; step < 4; ++step) {
      ptx::wgmma_keep(p[step]);
      store_fragment(s.q[0], t, step, p[step]);
    }
  }
  DSA_DEVICE float result() const { return 0; }
};

struct WaitFull {
  static constexpr const char* kName = "wait for a full half tile, and fence";
  DSA_DEVICE void run(SharedStorage& s, int) { wait_full(s.half, 1); }
  DSA_DEVICE float result() const { return 0; }
};

// ---- The kernel ---------------------------------------------------------------------------------------------------------
template <class Part> DSA_DEVICE long long repeat(SharedStorage& s, int times, int t, float* sink) {
  Part part;
  part.run(s, t);
  const long long begin = clock64();
#pragma unroll 1
  for (int i = 0; i < times; ++i) part.run(s, t);
  const long long clocks = clock64() - begin;
  *sink = part.result();
  return clocks;
}
template <> __device__ __forceinline__ long long repeat<Nothing>(SharedStorage&, int, int, float*) { return 0; }

struct Measured { long long clocks[2], gather_clocks, gathered_bytes; };

/// `in_flight` tiles of 64 rows at a time, until somebody says that it is enough. @param in_flight 0: rest
DSA_DEVICE void gather(SharedStorage& s, const bf16* kv, unsigned rows, int in_flight, int t, Measured* measured) {
  if (in_flight == 0) return;
  const long long begin = clock64();
  unsigned random = blockIdx.x * 7919 + t / 8 * 131;
  int tiles = 0;
  for (; *static_cast<volatile int*>(&s.done) == 0; ++tiles) {
    for (int i = 0; i < 4; ++i) {
      random = random * 1664525 + 1013904223;
      copy_row<kQKTiles>(s.gathered.k, t / 8 + 16 * i, t % 8, kv + int64_t((random >> 8) % rows) * kDimQK, true);
    }
    ptx::cp_async_commit_group();
    if (in_flight == 1) ptx::cp_async_wait_group<0>();
    else if (in_flight == 2) ptx::cp_async_wait_group<1>();
    else ptx::cp_async_wait_group<2>();
  }
  ptx::cp_async_wait_group<0>();
  if (t == 0) measured->gather_clocks = clock64() - begin, measured->gathered_bytes = int64_t(tiles) * sizeof(KeyTile);
}

/// @param times         how often the first part is run; if there is none, the microseconds that the gather goes on
/// @param times_second  so often that the first part never runs alone
template <class First, class Second>
__global__ void __launch_bounds__(384, 1) measure(int times, int times_second, const bf16* kv, unsigned rows, int in_flight,
                                                  float* sink, Measured* all) {
  SharedStorage& s = shared_memory<SharedStorage>();
  for (int i = threadIdx.x; i < int(3 * sizeof(KeyTile) / 4); i += 384) reinterpret_cast<uint32_t*>(&s)[i] = 0x3c003c00;
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&s.half.full, 1);
    s.done = 0;
  }
  ptx::fence_proxy_async_shared();
  __syncthreads();
  const int warpgroup = __shfl_sync(0xffffffffu, int(threadIdx.x) / 128, 0), t = threadIdx.x % 128;
  Measured* measured = all + blockIdx.x;
  if (warpgroup == 2) {
    ptx::setmaxnreg_dec<88>();
    gather(s, kv, rows, in_flight, t, measured);
  } else if (warpgroup == 0) {
    ptx::setmaxnreg_inc<208>();
    const long long clocks = repeat<First>(s, times, t, sink + threadIdx.x);
    if constexpr (std::is_same_v<First, Nothing>)
      for (int i = 0; i < times; ++i) __nanosleep(1000);
    if (t == 0) measured->clocks[0] = clocks, s.done = 1;
  } else {
    ptx::setmaxnreg_inc<208>();
    const long long clocks = repeat<Second>(s, times_second, t, sink + threadIdx.x);
    if (t == 0) measured->clocks[1] = clocks;
  }
}

void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "costs: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

/// One line. @param longer how many times as often the second part is run
template <class First, class Second = Nothing> void line(int in_flight = 0, unsigned rows = 8192, int longer = 1) {
  constexpr int kTimes = 1000, kMostRows = 131072;
  static bf16* kv = nullptr;
  static float* sink = nullptr;
  static Measured* measured = nullptr;
  static int sms = 0;
  if (!kv) {
    check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    check(cudaMalloc(&kv, size_t(kMostRows) * kDimQK * 2));
    check(cudaMemset(kv, 0x3c, size_t(kMostRows) * kDimQK * 2));
    check(cudaMalloc(&sink, 384 * 4));
    check(cudaMalloc(&measured, sms * sizeof(Measured)));
  }
  check(cudaMemset(measured, 0, sms * sizeof(Measured)));
  check(cudaFuncSetAttribute(measure<First, Second>, cudaFuncAttributeMaxDynamicSharedMemorySize, int(sizeof(SharedStorage))));
  measure<First, Second><<<sms, 384, sizeof(SharedStorage)>>>(kTimes, longer * kTimes, kv, rows, in_flight, sink, measured);
  check(cudaGetLastError());
  Measured m;
  check(cudaMemcpy(&m, measured, sizeof(m), cudaMemcpyDeviceToHost));
  std::printf("%-38s ", *First::kName ? First::kName : "-");
  if (*First::kName) std::printf("%6.0f | ", double(m.clocks[0]) / kTimes);
  else std::printf("%6s | ", "");
  std::printf("%-38s | ", *Second::kName ? Second::kName : "-");
  if (in_flight) std::printf("gather, %d tiles of %u rows: %.1f B/clk", in_flight, rows, double(m.gathered_bytes) / double(m.gather_clocks));
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace

int main() {
  using Scores64 = Scores<64, false>;
  std::printf("# Clocks of one SM for a part, beside another part done by a second warpgroup, beside a gather by a third.\n");
  std::printf("# Each part is waited for; all SMs do the same.\n");
  line<Scores64>();
  line<Scores<64, true>>();
  line<Scores<128, false>>();
  line<Output<true>>();
  line<Output<false>>();
  line<Scores64, Scores64>();
  line<Output<true>, Output<true>>();
  line<Scores64, Output<true>>(0, 8192, 4);
  line<Output<true>, Scores64>();
  line<Softmax>();
  line<Softmax, Softmax>();
  line<Softmax, Output<true>>();
  line<Softmax, Scores64>();
  line<Softmax, Scores<64, true>>();
  line<Softmax, Scores<128, false>>();
  line<Stores>();
  line<Stores, Output<true>>();
  line<Stores, Scores64>();
  line<WaitFull>();
  line<WaitFull, Scores64>();
  for (unsigned rows : {8192u, 32768u, 131072u})
    for (int in_flight : {1, 2, 3}) line<Nothing>(in_flight, rows);
  line<Scores64, Scores64>(2);
  line<Output<true>, Output<true>>(2);
  line<Softmax, Scores64>(2);
  line<WaitFull>(2);
}
