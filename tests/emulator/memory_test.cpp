/// What the emulator says of a kernel's loads and stores, and how it counts them: planted faults beside sound twins.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "cuda/device/device.cuh"
#include "cuda/device/emulator/memory.hpp"
#include "cuda/device/emulator/source.hpp"

using namespace dsa;
using emulator::Access;

// Without the compiler's help (a build with a sanitizer) plain loads and stores are not seen.
#if defined(DSA_INSTRUMENTED)
constexpr bool kUnseen = false;
#else
constexpr bool kUnseen = true;
#endif
// clang splits vectors into their elements and, before version 16, does not report copies of structs.
#if defined(__clang__)
constexpr bool kVectorsUnseen = true;
#else
constexpr bool kVectorsUnseen = kUnseen;
#endif

namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Device memory as the harness lays it out: a named tensor between guard bands.
template <class T> class Tensor {
 public:
  Tensor(const std::string& name, std::size_t elements, T value = {}) : memory_(elements + 2 * kGuard, value) {
    emulator::add_allocation(memory_.data(), memory_.size() * sizeof(T));
    emulator::name_allocation(data(), elements * sizeof(T), name);
  }
  ~Tensor() { emulator::remove_allocation(memory_.data()); }
  T* data() { return memory_.data() + kGuard; }

 private:
  static constexpr std::size_t kGuard = 4096 / sizeof(T);
  std::vector<T> memory_;
};

template <class... Parameters, class... Arguments>
std::string verdict(void (*kernel)(Parameters...), const LaunchConfig& config, Arguments... arguments) {
  emulator::set_schedule({});
  const cudaError_t error = launch(kernel, config, arguments...);
  CHECK(error == (emulator::last_error().empty() ? cudaSuccess : cudaErrorLaunchFailure));
  return emulator::last_error();
}

// ---- Global memory ---------------------------------------------------------------------------------------------
void copy_shifted(float* out, const float* in, int shift) {
  const int i = int(threadIdx.x);
  out[i] = in[i + shift];
}
void write_shifted(float* out, int shift) { out[int(threadIdx.x) + shift] = 1.0f; }
void add_shifted(float* out, int shift) { atomicAdd(out + threadIdx.x + shift, 1.0f); }
void through_null(const float* const* table, float* out) { out[threadIdx.x] = table[0][2]; }
void load_vector(float* out, const float* in, int shift) {
  const float4 v = *reinterpret_cast<const float4*>(in + 4 * threadIdx.x + shift);
  out[threadIdx.x] = v.x + v.y + v.z + v.w;
}
void copy_bytes(float* out, const float* in, int shift) {
  std::memcpy(out + 4 * threadIdx.x, in + 4 * threadIdx.x + shift, 16);
}
void launches_with_a_struct(dim3 big, float* out) { out[threadIdx.x] = float(big.x + big.y + warpSize); }

template <class T> constexpr int kThree = 3;
template <class T> [[gnu::noinline]] void writes_three(float* out, const T (&x)[kThree<T>]) { out[threadIdx.x + 32] = float(x[2]); }
void calls_with_an_array(float* out) {
  const int x[3] = {1, 2, 3};
  writes_three(out, x);
}

constexpr LaunchConfig kOneWarp{dim3(1), dim3(32)};

}  // namespace

TEST_CASE("loads outside of a tensor name it and the line" * doctest::skip(kUnseen)) {
  Tensor<float> in("kv", 32, 1.0f), out("out", 32);
  CHECK(verdict(copy_shifted, kOneWarp, out.data(), in.data(), 0).empty());
  std::string words = verdict(copy_shifted, kOneWarp, out.data(), in.data(), 1);
  CAPTURE(words);
  CHECK(contains(words, "block (0, 0, 0), thread (31, 0, 0) at memory_test.cpp:"));
  CHECK(contains(words, " (copy_shifted): reads 4 bytes at 'kv' + 128, 0 bytes past its end (128 bytes)"));
  words = verdict(copy_shifted, kOneWarp, out.data(), in.data(), -2);
  CAPTURE(words);
  CHECK(contains(words, "thread (0, 0, 0)"));
  CHECK(contains(words, "reads 4 bytes, 8 bytes before 'kv'"));
  words = verdict(copy_shifted, kOneWarp, out.data(), in.data(), 1 << 30);
  CAPTURE(words);
  CHECK(contains(words, ", which is no device memory"));
}

TEST_CASE("a function's name, also where the demangler gives up" * doctest::skip(kUnseen)) {
  Tensor<float> out("out", 32);
  const std::string words = verdict(calls_with_an_array, kOneWarp, out.data());
  CAPTURE(words);
  CHECK(contains(words, " (writes_three): writes 4 bytes at 'out' + 128"));
}

TEST_CASE("stores and atomics outside of a tensor" * doctest::skip(kUnseen)) {
  Tensor<float> out("out", 32);
  CHECK(verdict(write_shifted, kOneWarp, out.data(), 0).empty());
  CHECK(contains(verdict(write_shifted, kOneWarp, out.data(), 1),
                 "writes 4 bytes at 'out' + 128, 0 bytes past its end"));
  CHECK(contains(verdict(write_shifted, kOneWarp, out.data(), -1), "writes 4 bytes, 4 bytes before 'out'"));
  CHECK(verdict(add_shifted, kOneWarp, out.data(), 0).empty());
  CHECK(out.data()[31] == 2.0f);
  CHECK(contains(verdict(add_shifted, kOneWarp, out.data(), 3), "4 bytes at 'out' + 128, 0 bytes past its end"));
}

TEST_CASE("null pointers are called that" * doctest::skip(kUnseen)) {
  Tensor<const float*> table("table", 1);
  Tensor<float> out("out", 32), in("in", 3);
  table.data()[0] = in.data();
  CHECK(verdict(through_null, kOneWarp, table.data(), out.data()).empty());
  table.data()[0] = nullptr;
  CHECK(contains(verdict(through_null, kOneWarp, table.data(), out.data()),
                 "reads 4 bytes at address 0x8: a null pointer?"));
}

TEST_CASE("vectors must be aligned as the hardware wants it; copies need not" * doctest::skip(kVectorsUnseen)) {
  Tensor<float> in("q", 132, 0.25f), out("out", 128);
  CHECK(verdict(load_vector, kOneWarp, out.data(), in.data(), 4).empty());
  CHECK(out.data()[31] == 1.0f);
  CHECK(contains(verdict(load_vector, kOneWarp, out.data(), in.data(), 2),
                 "misaligned: reads 16 bytes at 'q' + 8, which is not a multiple of 16"));
  CHECK(verdict(copy_bytes, kOneWarp, out.data(), in.data(), 1).empty());
  CHECK(contains(verdict(copy_bytes, kOneWarp, out.data(), in.data(), 6),
                 "reads 16 bytes at 'q' + 520, the last 8 of them past its end (528 bytes)"));
}

TEST_CASE("a kernel's arguments, its stack and constants are nobody's business" * doctest::skip(kUnseen)) {
  Tensor<float> out("out", 32);
  CHECK(verdict(launches_with_a_struct, kOneWarp, dim3(1, 2), out.data()).empty());
  CHECK(out.data()[7] == 35.0f);
}

// ---- Shared memory ---------------------------------------------------------------------------------------------
namespace {

struct Exchange {
  int value[64];
  unsigned char bytes[64];
};

void neighbour(int* out, bool all_write) {
  Exchange& s = shared_memory<Exchange>();
  if (all_write || threadIdx.x < 63) s.value[threadIdx.x] = int(threadIdx.x);
  __syncthreads();
  out[threadIdx.x] = s.value[(threadIdx.x + 1) % 64];
}
void single_bytes(int* out, int missing) {
  Exchange& s = shared_memory<Exchange>();
  if (int(threadIdx.x) != missing) s.bytes[threadIdx.x] = static_cast<unsigned char>(threadIdx.x);
  __syncthreads();
  out[threadIdx.x] = threadIdx.x < 16 ? reinterpret_cast<const int*>(s.bytes)[threadIdx.x] : 0;
}
void past_the_end(int* out, int index) {
  Exchange& s = shared_memory<Exchange>();
  s.value[threadIdx.x] = 1;
  __syncthreads();
  out[threadIdx.x] = (&s.value[0])[index];
}
void shared_histogram(int* out, bool clear) {
  Exchange& s = shared_memory<Exchange>();
  if (clear) s.value[threadIdx.x] = 0;
  __syncthreads();
  atomicAdd(&s.value[threadIdx.x % 4], 1);
  __syncthreads();
  out[threadIdx.x] = s.value[threadIdx.x % 4];
}

constexpr LaunchConfig kTwoWarps{dim3(2), dim3(64), sizeof(Exchange)};

}  // namespace

TEST_CASE("reading shared memory that nobody has written" * doctest::skip(kUnseen)) {
  Tensor<int> out("out", 64);
  CHECK(verdict(neighbour, kTwoWarps, out.data(), true).empty());
  CHECK(out.data()[63] == 0);
  const std::string words = verdict(neighbour, kTwoWarps, out.data(), false);
  CAPTURE(words);
  CHECK(contains(words, "thread (62, 0, 0) at memory_test.cpp:"));
  CHECK(contains(words, " (neighbour): reads 4 bytes of shared memory at offset 252 that nobody has written"));
}

TEST_CASE("every byte of shared memory counts by itself" * doctest::skip(kUnseen)) {
  Tensor<int> out("out", 64);
  CHECK(verdict(single_bytes, kTwoWarps, out.data(), -1).empty());
  CHECK(out.data()[1] == 0x07060504);
  CHECK(contains(verdict(single_bytes, kTwoWarps, out.data(), 6),
                 "reads 4 bytes of shared memory at offset 260 that nobody has written"));
}

TEST_CASE("outside of the block's shared memory" * doctest::skip(kUnseen)) {
  Tensor<int> out("out", 64);
  CHECK(verdict(past_the_end, kTwoWarps, out.data(), 63).empty());
  CHECK(contains(verdict(past_the_end, kTwoWarps, out.data(), 80),
                 "reads 4 bytes at offset 320 of shared memory, past the end of the block's 320 bytes"));
  CHECK(contains(verdict(past_the_end, kTwoWarps, out.data(), -1),
                 "reads 4 bytes, 4 bytes before the block's shared memory"));
}

TEST_CASE("atomics on shared memory read what was there" * doctest::skip(kUnseen)) {
  Tensor<int> out("out", 64);
  CHECK(verdict(shared_histogram, kTwoWarps, out.data(), true).empty());
  CHECK(out.data()[3] == 16);
  CHECK(contains(verdict(shared_histogram, kTwoWarps, out.data(), false), "that nobody has written"));
}

// ---- Proxies ---------------------------------------------------------------------------------------------------
TEST_CASE("the async proxy may read what was written through the generic one only behind a fence") {
  alignas(16) unsigned char memory[64];
  emulator::begin_shared(0, memory, sizeof memory);
  emulator::Clock writer{{0, 0, 0, 5}, {0, 0, 0, 0}}, reader{{9, 0, 0, 0}, {9, 0, 0, 0}};
  const Access store{memory + 16, 16, Access::Kind::kWrite};
  const Access operand{memory + 16, 16, Access::Kind::kRead, Access::Proxy::kAsync, nullptr, "wgmma operand B"};
  REQUIRE(emulator::judge(store, 3, writer).empty());

  reader.join(writer);   // a barrier alone
  CHECK(emulator::judge(operand, 0, reader) ==
        "wgmma operand B reads shared memory at offset 16 that warp 3 wrote through the generic proxy, without a "
        "fence.proxy.async in between");
  writer.fence();
  reader.join(writer);
  CHECK(emulator::judge(operand, 0, reader).empty());

  ++writer.seen[3];      // the fence came before this store
  REQUIRE(emulator::judge(store, 3, writer).empty());
  reader.join(writer);
  CHECK(contains(emulator::judge(operand, 0, reader), "without a fence.proxy.async"));
  reader.fence();        // the reader's own fence does it too, behind a barrier
  CHECK(emulator::judge(operand, 0, reader).empty());

  const Access bulk{memory + 16, 16, Access::Kind::kWrite, Access::Proxy::kAsync, nullptr, "cp.async.bulk"};
  CHECK(emulator::judge(bulk, 0, reader).empty());
  CHECK(emulator::judge(operand, 0, {}).empty());

  const Access copy{memory + 16, 16, Access::Kind::kWrite, Access::Proxy::kGeneric, nullptr, "cp.async"};
  CHECK(emulator::judge(copy, 3, writer).empty());
  CHECK(contains(emulator::judge(operand, 0, writer), "without a fence.proxy.async"));
  CHECK(contains(emulator::judge(operand, 0, {}), "nothing orders the two"));   // who has not even seen the write
  emulator::cp_async_needs_fence = false;
  CHECK(emulator::judge(copy, 3, writer).empty());
  emulator::cp_async_needs_fence = true;
  CHECK(emulator::judge(operand, 0, {}).empty());

  const Access too_far{memory + 60, 8, Access::Kind::kWrite};
  CHECK(contains(emulator::judge(too_far, 0, writer), "past the end of the block's 64 bytes"));
  emulator::end_shared(0);
}

TEST_CASE("the async proxy may overwrite what was read or written through the generic one only behind a fence") {
  alignas(16) unsigned char memory[64];
  emulator::begin_shared(0, memory, sizeof memory);
  emulator::Clock reader{{0, 0, 0, 5}, {0, 0, 0, 0}}, copier{{9, 0, 0, 0}, {9, 0, 0, 0}};
  const Access bulk{memory + 16, 16, Access::Kind::kWrite, Access::Proxy::kAsync, nullptr, "cp.async.bulk"};
  const Access load{memory + 20, 4, Access::Kind::kRead}, store{memory + 24, 4, Access::Kind::kWrite};
  CHECK(emulator::judge(bulk, 0, copier).empty());     // the first to write
  REQUIRE(emulator::judge(load, 3, reader).empty());
  CHECK(emulator::judge(bulk, 0, copier) ==
        "cp.async.bulk writes shared memory at offset 20 that warp 3 read, and nothing orders the two: a barrier is missing, or "
        "comes too early or too late");
  CHECK(emulator::judge(bulk, 0, copier).empty());     // nobody has read what the last copy brought

  REQUIRE(emulator::judge(load, 3, reader).empty());
  copier.join(reader);                                 // a barrier alone
  CHECK(emulator::judge(bulk, 0, copier) ==
        "cp.async.bulk writes shared memory at offset 20 that warp 3 read through the generic proxy, without a "
        "fence.proxy.async in between");
  REQUIRE(emulator::judge(load, 3, reader).empty());
  reader.fence();
  copier.join(reader);
  CHECK(emulator::judge(bulk, 0, copier).empty());
  ++reader.seen[3];                                    // the fence came before this load
  REQUIRE(emulator::judge(load, 3, reader).empty());
  copier.join(reader);
  CHECK(contains(emulator::judge(bulk, 0, copier), "that warp 3 read through the generic proxy"));
  REQUIRE(emulator::judge(load, 3, reader).empty());
  copier.fence();                                      // the copier's own fence does it too, behind a barrier
  CHECK(emulator::judge(bulk, 0, copier).empty());

  ++reader.seen[3];
  REQUIRE(emulator::judge(store, 3, reader).empty());
  copier.join(reader);
  CHECK(emulator::judge(bulk, 0, copier) ==
        "cp.async.bulk writes shared memory at offset 24 that warp 3 wrote through the generic proxy, without a "
        "fence.proxy.async in between");
  REQUIRE(emulator::judge(load, 3, reader).empty());   // what the generic proxy overwrites is not judged
  REQUIRE(emulator::judge({memory + 20, 4, Access::Kind::kWrite}, 3, reader).empty());
  CHECK(emulator::judge({memory + 20, 4, Access::Kind::kWrite, Access::Proxy::kGeneric, nullptr, "cp.async"}, 2, {}).empty());
  emulator::end_shared(0);
}

// ---- Counting --------------------------------------------------------------------------------------------------
namespace {

struct Tile {
  float word[32 * 32];
  float4 vector[32];
};

void strided(float* out, const float* in, int stride) {
  Tile& s = shared_memory<Tile>();
  for (int i = 0; i < 32; ++i) s.word[32 * i + int(threadIdx.x)] = in[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = s.word[int(threadIdx.x) * stride % 1024];   // [strided]
}
void vectors(float4* out, const float4* in) {
  Tile& s = shared_memory<Tile>();
  s.vector[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = s.vector[threadIdx.x ^ 1];
}
void updates(int* out) { atomicAdd(out, 1); }

constexpr LaunchConfig kCounted{dim3(1), dim3(32), sizeof(Tile)};

emulator::MemoryCounts counts_of_strided(int stride) {
  Tensor<float> in("in", 32), out("out", 32);
  emulator::count_memory(true);
  CHECK(verdict(strided, kCounted, out.data(), in.data(), stride).empty());
  emulator::count_memory(false);
  return emulator::memory_counts();
}

}  // namespace

TEST_CASE("bytes and wavefronts of a kernel that can be counted by hand" * doctest::skip(kUnseen)) {
  const emulator::MemoryCounts counts = counts_of_strided(1);
  CHECK(counts.global_read % 128 == 0);             // once, or 32 times where the compiler left the load in the loop
  CHECK(counts.global_read_distinct >= 128);
  CHECK(counts.global_read_distinct <= 160);        // five sectors when the tensor does not begin with one
  CHECK(counts.global_written == 128);
  CHECK(counts.shared_written == 32 * 128);
  CHECK(counts.shared_read == 128);
  CHECK(counts.shared_wavefronts == 33);
  CHECK(counts.shared_wavefronts_ideal == 33);
  CHECK(emulator::bank_conflicts().empty());
}

TEST_CASE("bank conflicts are found, and where; a broadcast is none" * doctest::skip(kUnseen)) {
  CHECK(counts_of_strided(0).shared_wavefronts == 33);
  CHECK(counts_of_strided(33).shared_wavefronts == 33);
  CHECK(counts_of_strided(2).shared_wavefronts == 34);
  CHECK(counts_of_strided(32).shared_wavefronts == 64);
  const std::vector<emulator::BankConflict> conflicts = emulator::bank_conflicts();
  REQUIRE(conflicts.size() == 1);
  CHECK(conflicts[0].wavefronts == 32);
  CHECK(conflicts[0].ideal == 1);
  CHECK(contains(emulator::source_line(conflicts[0].pc), "(strided)"));
  CHECK(contains(emulator::source_text(conflicts[0].pc), "// [strided]"));
}

TEST_CASE("vectors of 16 bytes go by quarter warps" * doctest::skip(kVectorsUnseen)) {
  Tensor<float4> in("in", 32), out("out", 32);
  emulator::count_memory(true);
  CHECK(verdict(vectors, kCounted, out.data(), in.data()).empty());
  emulator::count_memory(false);
  CHECK(emulator::memory_counts().shared_read == 512);
  CHECK(emulator::memory_counts().shared_wavefronts == 8);
  CHECK(emulator::memory_counts().shared_wavefronts_ideal == 8);
}

TEST_CASE("atomics count as read and as written" * doctest::skip(kUnseen)) {
  Tensor<int> total("total", 1);
  emulator::count_memory(true);
  CHECK(verdict(updates, kOneWarp, total.data()).empty());
  emulator::count_memory(false);
  CHECK(emulator::memory_counts().global_read == 128);
  CHECK(emulator::memory_counts().global_written == 128);
  CHECK(emulator::memory_counts().global_read_distinct == 32);
}
