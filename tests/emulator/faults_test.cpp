/// What the emulator says of kernels that are wrong, and of launches that cannot be.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "cuda/device/device.cuh"

using namespace dsa;

namespace {

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

void half_of_the_block_waits() {
  if (threadIdx.x < 32) __syncthreads();
  else __shfl_sync(0xffffffffu, 1, 0), __syncthreads(), __syncthreads();
}
void lane_missing_from_a_shuffle() {
  if (threadIdx.x != 5) __shfl_xor_sync(~0u, 1, 1);
  else __syncthreads();
}
void diverged_collectives() {
  if (threadIdx.x < 16) __ballot_sync(~0u, 1);
  else __shfl_sync(~0u, 1, 0);
}
void outside_its_own_mask() { __shfl_sync(0x1u, 1, 0); }
void reads_an_absent_lane() { __shfl_xor_sync(0x3u, 1, 2); }
void nothing() {}
[[maybe_unused]] void throws_away_its_shared_memory(int* out) { out[threadIdx.x] = shared_memory<int>(); }

}  // namespace

TEST_CASE("a deadlock is reported at once and says who waits for what") {
  CHECK(launch(half_of_the_block_waits, {dim3(1), dim3(64)}) == cudaSuccess);   // exited threads release the rest
  CHECK(launch(lane_missing_from_a_shuffle, {dim3(1), dim3(64)}) == cudaErrorLaunchFailure);
  const std::string words = emulator::last_error();
  CAPTURE(words);
  CHECK(contains(words, "deadlock in block (0, 0, 0)"));
  CHECK(contains(words, "warp 0, lanes 0-4: wait at __shfl_xor_sync"));
  CHECK(contains(words, "warp 0, lanes 5-5: wait at __syncthreads"));
}

TEST_CASE("lanes of one mask that call different collectives have diverged") {
  CHECK(launch(diverged_collectives, {dim3(2), dim3(32)}) == cudaErrorLaunchFailure);
  CHECK(contains(emulator::last_error(), "__shfl_sync meets __ballot_sync in the same warp"));
  CHECK(contains(emulator::last_error(), "thread (16, 0, 0)"));
}

TEST_CASE("a lane must be in its own mask, and read only lanes that are") {
  CHECK(launch(outside_its_own_mask, {dim3(1), dim3(2)}) == cudaErrorLaunchFailure);
  CHECK(contains(emulator::last_error(), "lane 1 is not in its mask"));
  CHECK(launch(reads_an_absent_lane, {dim3(1), dim3(2)}) == cudaErrorLaunchFailure);
  CHECK(contains(emulator::last_error(), "reads lane 2, which takes no part"));
}

TEST_CASE("a fault leaves the emulator usable") {
  CHECK(launch(diverged_collectives, {dim3(2), dim3(32)}) == cudaErrorLaunchFailure);
  CHECK(launch(nothing, {dim3(3), dim3(1024)}) == cudaSuccess);
  CHECK(emulator::last_error().empty());
}

TEST_CASE("impossible launches give CUDA's error, not a crash") {
  CHECK(launch(nothing, {dim3(1), dim3(1025)}) == cudaErrorInvalidConfiguration);
  CHECK(launch(nothing, {dim3(0), dim3(32)}) == cudaErrorInvalidConfiguration);
  CHECK(launch(nothing, {dim3(1, 65536), dim3(32)}) == cudaErrorInvalidConfiguration);
  CHECK(launch(nothing, {dim3(1), dim3(32), kMaxSharedMemory + 1}) == cudaErrorInvalidValue);
  CHECK(contains(emulator::last_error(), "shared memory: 232449 bytes asked for"));
  CHECK(launch(nothing, {dim3(1), dim3(32), kMaxSharedMemory}) == cudaSuccess);
}

// Where loads are judged, this one is a fault: memory_test.cpp.
#if !defined(DSA_INSTRUMENTED)
TEST_CASE("every block finds its shared memory poisoned") {
  std::vector<int> out(32, 0);
  CHECK(launch(throws_away_its_shared_memory, {dim3(2), dim3(32), 64}, out.data()) == cudaSuccess);
  CHECK(out == std::vector<int>(32, -1));
}
#endif
