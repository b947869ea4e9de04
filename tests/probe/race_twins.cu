/// @file race_twins.cu
/// The smallest sound programs that hand words over as the warp-specialised kernels do, for
///
///     compute-sanitizer --tool racecheck race_twins NAME
///
/// PTX orders every access here (bar.arrive and bar.sync, mbarrier.arrive and try_wait: "Memory Consistency Model", causality
/// order), and the emulator agrees. What racecheck reports for one of these it will report for the kernels, too.
///
/// | NAME    | there                                   | and back                                          |
/// |---------|-----------------------------------------|---------------------------------------------------|
/// | named   | bar.arrive of 128, bar.sync of 128      | the same, another barrier                         |
/// | elected | one lane of each warp writes, as `any`  | the same                                          |
/// | mbarrier| 128 arrivals                            | 4 arrivals, a lane of each warp after __syncwarp  |
/// | copies  | cp.async, arrivals without increment    | 4 arrivals                                        |
#include <cstdio>
#include <cstring>

#include "../../cuda/device/device.cuh"
#include "../../cuda/device/ptx.cuh"

namespace {

using namespace dsa;

constexpr int kRounds = 4;
enum Twin { kNamed, kElected, kMbarrier, kCopies, kTwins };
const char* const kNames[kTwins] = {"named", "elected", "mbarrier", "copies"};

struct SharedStorage {
  alignas(16) int word[128 * 4];
  bool any[4];
  ptx::mbarrier full, empty;
};

__global__ void twin(Twin what, const int* in, int* out) {
  __shared__ SharedStorage s;
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&s.full, 128);
    ptx::mbarrier_init(&s.empty, 4);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  const int t = threadIdx.x % 128;
  const bool writer = threadIdx.x < 128;
  int sum = 0;
  for (int round = 0; round < kRounds; ++round) {
    const unsigned parity = round % 2;
    if (writer) {
      if (what == kMbarrier || what == kCopies) ptx::mbarrier_wait_parity(&s.empty, parity ^ 1);
      else if (round > 0) ptx::barrier_sync(2, 256);
      if (what == kElected) {
        if (t % 32 == 0) s.any[t / 32] = round % 2 == 0;
      } else if (what == kCopies) {
        ptx::cp_async_16(s.word + 4 * t, in + 4 * t);
      } else {
        s.word[4 * t] = round + t;
      }
      if (what == kCopies) ptx::cp_async_mbarrier_arrive_noinc(&s.full);
      else if (what == kMbarrier) ptx::mbarrier_arrive(&s.full);
      else ptx::barrier_arrive(1, 256);
    } else {
      if (what == kMbarrier || what == kCopies) ptx::mbarrier_wait_parity(&s.full, parity);
      else ptx::barrier_sync(1, 256);
      sum += what == kElected ? int(s.any[t / 32]) : s.word[4 * (127 - t)];
      if (what == kMbarrier || what == kCopies) {
        __syncwarp();
        if (t % 32 == 0) ptx::mbarrier_arrive(&s.empty);
      } else if (round + 1 < kRounds) {
        ptx::barrier_arrive(2, 256);
      }
    }
  }
  if (!writer) out[t] = sum;
}

}  // namespace

int main(int argc, char** argv) {
  for (int what = 0; what < kTwins; ++what) {
    if (argc > 1 && std::strcmp(argv[1], kNames[what])) continue;
    int *in, *out, sums[128];
    cudaMalloc(&in, 2048);
    cudaMalloc(&out, sizeof(sums));
    cudaMemset(in, 0, 2048);
    twin<<<1, 256>>>(Twin(what), in, out);
    const cudaError_t error = cudaMemcpy(sums, out, sizeof(sums), cudaMemcpyDeviceToHost);
    std::printf("%s: %s, %d\n", kNames[what], cudaGetErrorString(error), sums[0]);
    cudaFree(in);
    cudaFree(out);
    if (error != cudaSuccess) return 1;
  }
}
