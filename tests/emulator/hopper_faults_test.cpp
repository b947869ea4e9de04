/// One sound kernel with every mechanism of a Hopper pipeline (tests/probe/hopper_path.cuh), and the faults planted in
/// it: the emulator must name each, and must stay silent about the sound one.
#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "cuda/device/emulator/memory.hpp"
#include "tests/probe/hopper_path_inputs.hpp"

using namespace dsa;
using namespace dsa::probe;
using emulator::Schedule;

namespace {

constexpr int kSeeds = 50;

// A launch that fails leaves its fibers behind, and a thread sanitizer cannot have more than 8128; it also ends the test at a
// race. It has two tests of its own, below and in tests/CMakeLists.txt.
#if defined(__SANITIZE_THREAD__)
constexpr bool kThreadSanitizer = true;
#else
constexpr bool kThreadSanitizer = false;
#endif
#if defined(DSA_INSTRUMENTED)
constexpr bool kPlainAccessesUnseen = false;
#else
constexpr bool kPlainAccessesUnseen = true;
#endif

/// Device memory with a name.
template <class T> class Tensor {
 public:
  Tensor(const char* name, const std::vector<T>& values) : count_(values.size()) {
    // Of a page and more, so that a wild access is near no other tensor.
    memory_ = static_cast<char*>(std::aligned_alloc(256, bytes() + 2 * kMargin));
    emulator::add_allocation(memory_, bytes() + 2 * kMargin);
    emulator::name_allocation(data(), bytes(), name);
    std::memcpy(data(), values.data(), bytes());
  }
  ~Tensor() {
    emulator::remove_allocation(memory_);
    std::free(memory_);
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  T* data() { return reinterpret_cast<T*>(memory_ + kMargin); }
  std::size_t bytes() const { return (count_ * sizeof(T) + 255) / 256 * 256; }
  std::vector<T> read() { return {data(), data() + count_}; }

 private:
  static constexpr std::size_t kMargin = 1 << 16;
  std::size_t count_;
  char* memory_;
};

using Words = std::vector<std::string>;

/// What the schedules 0 (round robin) to kSeeds say. `named`: the launch fails with one of these words; `wrong`: it does
/// not fail, and the values are wrong.
struct Outcome {
  int named = 0, wrong = 0, silent = 0;
  std::string other;   // the first verdict with other words
};

template <Break kBreak> Outcome outcome(const Words& words) {
  const HopperPathInputs in;
  Tensor q("q", in.q), k("k", in.k);
  Tensor indices("indices", in.indices);
  Tensor out("out", in.want);
  const HopperPathArgs args{q.data(), k.data(), indices.data(), out.data(), in.kBankRows, in.kTiles};
  Outcome result;
  for (int seed = 0; seed <= kSeeds; ++seed) {
    using Kind = Schedule::Kind;
    emulator::set_schedule({seed == 0        ? Kind::kRoundRobin
                            : seed % 10 == 9 ? Kind::kStarve
                                             : Kind::kRandom,
                            uint64_t(seed)});
    std::fill_n(out.data(), in.want.size(), -1.0f);
    if (launch_hopper_path<kBreak>(args) == cudaSuccess) {
      out.read() == in.want ? ++result.silent : ++result.wrong;
      continue;
    }
    const std::string& verdict = emulator::last_error();
    const auto said = [&](const std::string& part) { return verdict.find(part) != std::string::npos; };
    if (std::any_of(words.begin(), words.end(), said)) ++result.named;
    else if (result.other.empty()) result.other = verdict;
  }
  emulator::set_schedule({});
  return result;
}

/// The fault is named in at least `share` of the schedules, and whatever else is said, it never passes unnoticed more often
/// than the rest.
template <Break kBreak> void must_be_named(const Words& words, int share = kSeeds + 1) {
  const Outcome o = outcome<kBreak>(words);
  CAPTURE(o.named);
  CAPTURE(o.wrong);
  CAPTURE(o.silent);
  CAPTURE(o.other);
  CHECK(o.other == "");
  CHECK(o.named >= share);
}

}  // namespace

TEST_CASE("the sound kernel is right, and silent, in every schedule") {
  const Outcome sound = outcome<Break::kNothing>({});
  CAPTURE(sound.other);
  CHECK(sound.silent == kSeeds + 1);
}

// Faults that every schedule must name.
TEST_CASE("a barrier that nobody completes: deadlock" * doctest::skip(kThreadSanitizer)) {
  must_be_named<Break::kNeverReleases>({"deadlock in block"});
}
TEST_CASE("more bytes announced than copied" * doctest::skip(kThreadSanitizer)) {
  must_be_named<Break::kExpectsTooManyBytes>({"tx-count mismatch"});
}
TEST_CASE("a warp multiplies with another tile" * doctest::skip(kThreadSanitizer)) {
  must_be_named<Break::kDivergentDescriptor>({"wgmma divergence"});
}
TEST_CASE("warps of a warpgroup go different ways" * doctest::skip(kThreadSanitizer)) {
  must_be_named<Break::kOneWarpWaits>({"warpgroup divergence: after 12 instructions"});
  must_be_named<Break::kLastWaitTwice>({"the block exits after 32 threads of a warpgroup have executed wgmma.wait_group 0"});
  must_be_named<Break::kUnevenRegisters>({"setmaxnreg.inc 224 here, setmaxnreg.inc 232", "setmaxnreg.inc 232 here, setmaxnreg.inc 224"});
}
TEST_CASE("a descriptor with illegal bits" * doctest::skip(kThreadSanitizer)) {
  must_be_named<Break::kIllegalDescriptor>({"illegal descriptor"});
}
TEST_CASE("a copy to a misaligned address" * doctest::skip(kThreadSanitizer)) {
  must_be_named<Break::kMisalignedCopy>({"not a multiple of 16"});
}
TEST_CASE("more registers than the block has" * doctest::skip(kThreadSanitizer)) {
  must_be_named<Break::kTooManyRegisters>({"setmaxnreg.inc 248, has"});
}
TEST_CASE("no proxy fence between stmatrix and wgmma" * doctest::skip(kThreadSanitizer)) {
  must_be_named<Break::kNoProxyFence>({"without a fence.proxy.async"});
}
TEST_CASE("a row that is outside of the tensor" * doctest::skip(kThreadSanitizer)) {
  must_be_named<Break::kWildIndex>({"bytes past its end (76800 bytes)"});
}
TEST_CASE("a store behind shared memory" * doctest::skip(kPlainAccessesUnseen)) {
  must_be_named<Break::kPastSharedMemory>({"past the end of the block's"});
}
TEST_CASE("no wgmma.fence" * doctest::skip(kThreadSanitizer)) {
  must_be_named<Break::kNoWgmmaFence>({"no wgmma.fence"});
}
TEST_CASE("a copy that nobody waits for" * doctest::skip(kThreadSanitizer)) {
  must_be_named<Break::kNoCopyWait>({"or nobody waits for the copy", "nobody has written"});
}
TEST_CASE("a bulk store left behind" * doctest::skip(kThreadSanitizer)) {
  must_be_named<Break::kLeavesStoreBehind>({"exits without waiting"});
}
TEST_CASE("more arrivals than the barrier takes" * doctest::skip(kThreadSanitizer)) {
  must_be_named<Break::kArrivesThrice>({"too many arrivals", "overrun", "nothing orders the two"});
}
TEST_CASE("a count that does not match the arrivals" * doctest::skip(kThreadSanitizer)) {
  must_be_named<Break::kWrongCount>({"arrivals left over", "nothing orders the two", "nobody has written", "wrong phase"});
}
TEST_CASE("the same parity twice" * doctest::skip(kThreadSanitizer)) {
  must_be_named<Break::kSamePhaseAgain>({"wrong phase", "nothing orders the two"});
}
TEST_CASE("a tile that is read before it is there" * doctest::skip(kPlainAccessesUnseen)) {
  must_be_named<Break::kReadsUnwritten>({"nobody has written", "nothing orders the two"});
}
TEST_CASE("threads that use a barrier while it is initialised" * doctest::skip(kThreadSanitizer)) {
  must_be_named<Break::kNoBarrierAfterInit>({"has not been initialised", "nothing orders the two"});
}

// Faults that only some schedules can show.
TEST_CASE("a buffer given back before the product has read it" * doctest::skip(kThreadSanitizer)) {
  must_be_named<Break::kReleasesTooEarly>({"nothing orders the two", "without a fence.proxy.async"}, kSeeds / 3);
}
TEST_CASE("one warp gives back what others still multiply" * doctest::skip(kThreadSanitizer)) {
  must_be_named<Break::kOneWarpReleases>({"nothing orders the two", "without a fence.proxy.async"}, kSeeds / 3);
}
TEST_CASE("accumulators read before the wait are poison" * doctest::skip(kThreadSanitizer)) {
  const Outcome o = outcome<Break::kReadsTooEarly>({});
  CHECK(o.wrong == kSeeds + 1);
}

// For the thread sanitizer (tests/CMakeLists.txt looks at what it prints); values do not show it.
TEST_CASE("race: two threads write one word" * doctest::skip()) {
  CHECK(outcome<Break::kTwoThreadsOneSlot>({}).silent == kSeeds + 1);
}
