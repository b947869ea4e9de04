/// CUDA's block and warp collectives on the emulator, against what the CUDA C++ Programming Guide says they do.
#include <doctest/doctest.h>

#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "cuda/device/device.cuh"

using namespace dsa;
using emulator::Schedule;

namespace {

/// Runs `body` under round-robin and under several random schedules.
template <class Body> void under_schedules(Body body) {
  emulator::set_schedule({Schedule::Kind::kRoundRobin, 0});
  body();
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    CAPTURE(seed);
    emulator::set_schedule({Schedule::Kind::kRandom, seed});
    body();
  }
  emulator::set_schedule({});
}

void shuffles(int* xor_out, int* up_out, int* down_out, int* index_out, int width) {
  const int lane = int(threadIdx.x) % 32;
  xor_out[threadIdx.x] = __shfl_xor_sync(~0u, 100 + lane, 5, width);
  up_out[threadIdx.x] = __shfl_up_sync(~0u, 100 + lane, 3, width);
  down_out[threadIdx.x] = __shfl_down_sync(~0u, 100 + lane, 3, width);
  index_out[threadIdx.x] = __shfl_sync(~0u, 100 + lane, lane * 7, width);
}

}  // namespace

TEST_CASE("shuffles move values as the guide says, for every width") {
  under_schedules([] {
    for (const int width : {8, 16, 32}) {
      std::vector<int> x(64), up(64), down(64), index(64);
      REQUIRE(launch(shuffles, {dim3(1), dim3(64)}, x.data(), up.data(), down.data(), index.data(), width) ==
              cudaSuccess);
      for (int t = 0; t < 64; ++t) {
        const int lane = t % 32, segment = lane / width * width;
        CHECK(x[size_t(t)] == 100 + ((lane ^ 5) < segment + width ? lane ^ 5 : lane));
        CHECK(up[size_t(t)] == 100 + (lane - 3 >= segment ? lane - 3 : lane));
        CHECK(down[size_t(t)] == 100 + (lane + 3 < segment + width ? lane + 3 : lane));
        CHECK(index[size_t(t)] == 100 + segment + lane * 7 % width);
      }
    }
  });
}

static void votes(unsigned* ballot, unsigned* match, unsigned* sum, unsigned* largest, int* any_all) {
  const unsigned lane = threadIdx.x % 32;
  const unsigned odd = 0xaaaaaaaau, mask = lane % 2 ? odd : ~odd;   // the two halves of a diverged warp
  ballot[threadIdx.x] = __ballot_sync(mask, lane < 10);
  match[threadIdx.x] = __match_any_sync(~0u, lane / 4);
  sum[threadIdx.x] = __reduce_add_sync(~0u, lane);
  largest[threadIdx.x] = __reduce_max_sync(mask, lane);
  any_all[threadIdx.x] = __any_sync(~0u, lane == 31) + 2 * __all_sync(~0u, lane < 31) + 4 * __all_sync(mask, 1);
}

TEST_CASE("votes, matches and reductions, also with diverged halves of a warp") {
  under_schedules([] {
    std::vector<unsigned> ballot(32), match(32), sum(32), largest(32);
    std::vector<int> any_all(32);
    REQUIRE(launch(votes, {dim3(1), dim3(32)}, ballot.data(), match.data(), sum.data(), largest.data(),
                   any_all.data()) == cudaSuccess);
    for (unsigned lane = 0; lane < 32; ++lane) {
      CHECK(ballot[lane] == (0x3ffu & (lane % 2 ? 0xaaaaaaaau : 0x55555555u)));
      CHECK(match[lane] == 0xfu << (lane / 4 * 4));
      CHECK(sum[lane] == 496);
      CHECK(largest[lane] == (lane % 2 ? 31 : 30));
      CHECK(any_all[lane] == 1 + 4);
    }
  });
}

struct Reverse {
  int value[96];
};
static void reverse(int* data, int* odd_count) {
  Reverse& s = shared_memory<Reverse>();
  s.value[threadIdx.x] = data[blockIdx.x * 96 + threadIdx.x];
  __syncthreads();
  data[blockIdx.x * 96 + threadIdx.x] = s.value[95 - threadIdx.x];
  odd_count[blockIdx.x * 96 + threadIdx.x] = __syncthreads_count(threadIdx.x % 2);
}

TEST_CASE("__syncthreads separates writes from reads in every schedule") {
  under_schedules([] {
    std::vector<int> data(960), odd(960), want(960);
    std::iota(data.begin(), data.end(), 0);
    for (int i = 0; i < 960; ++i) want[size_t(i)] = i / 96 * 96 + 95 - i % 96;
    REQUIRE(launch(reverse, {dim3(10), dim3(96), sizeof(Reverse)}, data.data(), odd.data()) == cudaSuccess);
    CHECK(data == want);
    CHECK(odd == std::vector<int>(960, 48));
  });
}

static void reverse_without_barrier(int* data) {
  Reverse& s = shared_memory<Reverse>();
  s.value[threadIdx.x] = data[threadIdx.x];
  __syncwarp();
  data[threadIdx.x] = s.value[95 - threadIdx.x];
}

// Skipped under the thread sanitizer, which would (rightly) report it; there it is a test of its own.
#if defined(__SANITIZE_THREAD__)
constexpr bool kThreadSanitizer = true;
#else
constexpr bool kThreadSanitizer = false;
#endif
TEST_CASE("a missing __syncthreads is seen: threads read what was not written yet" * doctest::skip(kThreadSanitizer)) {
  std::vector<int> data(96, 7);
  const cudaError_t error = launch(reverse_without_barrier, {dim3(1), dim3(96), sizeof(Reverse)}, data.data());
#if defined(DSA_INSTRUMENTED)
  CHECK(error == cudaErrorLaunchFailure);
  CHECK(emulator::last_error().find("that nobody has written") != std::string::npos);
#else
  REQUIRE(error == cudaSuccess);
  CHECK(std::set<int>(data.begin(), data.end()).count(-1) == 1);   // the 0xff poison of shared memory
#endif
}

static void leave_early(int* out) {
  if (threadIdx.x >= 40) return;   // exited threads count as arrived, on Hopper as here
  __syncthreads();
  if (threadIdx.x < 32) out[threadIdx.x] = int(__ballot_sync(~0u, 1) != 0);
}

TEST_CASE("exited threads do not hold up a barrier") {
  under_schedules([] {
    std::vector<int> out(32, 0);
    CHECK(launch(leave_early, {dim3(1), dim3(64)}, out.data()) == cudaSuccess);
    CHECK(out == std::vector<int>(32, 1));
  });
}

static void histogram(int* bins, float* total, unsigned* largest) {
  atomicAdd(&bins[threadIdx.x % 4], 1);
  atomicAdd(total, 0.5f);
  atomicMax(largest, threadIdx.x + 1000 * blockIdx.x);
}

TEST_CASE("atomics lose nothing") {
  under_schedules([] {
    std::vector<int> bins(4);
    float total = 0;
    unsigned largest = 0;
    REQUIRE(launch(histogram, {dim3(3), dim3(128)}, bins.data(), &total, &largest) == cudaSuccess);
    CHECK(bins == std::vector<int>(4, 96));
    CHECK(total == 192.0f);
    CHECK(largest == 2127);
  });
}

static void coordinates(uint64_t* seen) {
  const uint64_t block = blockIdx.x + gridDim.x * (blockIdx.y + uint64_t(gridDim.y) * blockIdx.z);
  const uint64_t thread = threadIdx.x + blockDim.x * (threadIdx.y + uint64_t(blockDim.y) * threadIdx.z);
  atomicAdd(&seen[block * 24 + thread], uint64_t(1));
}

TEST_CASE("every thread of a three-dimensional grid runs exactly once") {
  under_schedules([] {
    std::vector<uint64_t> seen(30 * 24);
    REQUIRE(launch(coordinates, {dim3(2, 3, 5), dim3(4, 3, 2)}, seen.data()) == cudaSuccess);
    CHECK(seen == std::vector<uint64_t>(30 * 24, 1));
  });
}
