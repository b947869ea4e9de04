#include "emulator.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "fiber.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif
#if defined(DSA_THREAD_SANITIZER)
extern "C" {
void __tsan_acquire(void* address);
void __tsan_release(void* address);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#else
static void __tsan_acquire(void*) {}
static void __tsan_release(void*) {}
static void AnnotateIgnoreReadsBegin(const char*, int) {}
static void AnnotateIgnoreReadsEnd(const char*, int) {}
static void AnnotateIgnoreWritesBegin(const char*, int) {}
static void AnnotateIgnoreWritesEnd(const char*, int) {}
#endif

namespace dsa::emulator {

uint3 threadIdx;
uint3 blockIdx;
dim3 blockDim;
dim3 gridDim;

namespace {

constexpr int kWarpSize = 32;
constexpr std::size_t kMaxThreads = 1024;
constexpr std::size_t kMaxSharedBytes = 227 * 1024;
constexpr std::size_t kSharedAlignment = 1024;

/// Thrown through a kernel's frames by a thread that broke a rule.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The emulator's own bookkeeping is no kernel's data: a thread sanitizer must not look at it. Each function that
/// kernels call begins with one of these.
struct OwnBusiness {
  OwnBusiness() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~OwnBusiness() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
};

const char* op_name(WarpOp op) {
  switch (op) {
    case WarpOp::kSync: return "__syncwarp";
    case WarpOp::kShuffle: return "__shfl_sync";
    case WarpOp::kShuffleXor: return "__shfl_xor_sync";
    case WarpOp::kShuffleUp: return "__shfl_up_sync";
    case WarpOp::kShuffleDown: return "__shfl_down_sync";
    case WarpOp::kBallot: return "__ballot_sync";
    case WarpOp::kMatchAny: return "__match_any_sync";
    case WarpOp::kReduceAdd: return "__reduce_add_sync";
    case WarpOp::kReduceMax: return "__reduce_max_sync";
    case WarpOp::kReduceMin: return "__reduce_min_sync";
  }
  return "?";
}

/// splitmix64 (Steele, Lea, Flood 2014). Not <random>'s engines: their code would be shared with instrumented files in
/// a thread-sanitizer build, and then reported.
struct Random {
  uint64_t state = 0;
  uint64_t operator()() {
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
};

struct Thread {
  Fiber fiber;
  uint3 index{};
  bool exited = false;
  bool waiting = false;
  const char* waits_for = "";
  uint64_t result = 0;     // of a collective, put here by the lane that completed it
};

/// Lanes of one warp that have met at a collective with the same mask, so far.
struct Rendezvous {
  unsigned mask = 0;
  unsigned arrived = 0;
  WarpOp op = WarpOp::kSync;
  std::array<uint64_t, kWarpSize> value{};
  std::array<int, kWarpSize> argument{};
  std::array<int, kWarpSize> width{};
};

struct Warp {
  unsigned alive = 0;                 // lanes that exist and have not exited
  std::vector<Rendezvous> meetings;   // usually none or one; several when a warp has diverged
};

struct Barrier {
  std::size_t arrived = 0;
  int count = 0;
};

class Scheduler {
 public:
  cudaError_t run(dim3 grid, dim3 block, std::size_t shared_bytes, const std::function<void()>& kernel);

  void* shared() const { return shared_; }
  int barrier(bool predicate);
  uint64_t collective(WarpOp op, unsigned mask, uint64_t value, int argument, int width);
  void preempt();

  Schedule schedule;
  std::string error;

 private:
  void run_block(uint3 index);
  [[noreturn]] static void thread_entry();
  void exit_thread();
  void record(const Fault& fault);
  std::size_t pick();
  void suspend(const char* reason);
  void switch_away();
  void wake(std::size_t thread);
  void finish_barrier_if_complete();
  void finish_meetings(std::size_t warp);
  void complete(std::size_t warp, Rendezvous& meeting);
  std::string deadlock_report() const;
  Thread& current() { return threads_[current_]; }

  const std::function<void()>* kernel_ = nullptr;
  StackPool stacks_;
  Fiber main_;
  std::vector<Thread> threads_ = std::vector<Thread>(kMaxThreads);
  std::size_t thread_count_ = 0;
  std::size_t alive_ = 0;
  std::size_t current_ = 0;
  std::array<uint64_t, kMaxThreads / 64> ready_{};   // one bit per thread
  std::vector<Warp> warps_;
  Barrier barrier_;
  Random random_;
  unsigned char* shared_ = nullptr;
  std::size_t shared_bytes_ = 0;
  bool faulted_ = false;
  bool running_ = false;
};

Scheduler& scheduler() {
  static Scheduler instance;
  return instance;
}

cudaError_t Scheduler::run(dim3 grid, dim3 block, std::size_t shared_bytes, const std::function<void()>& kernel) {
  error.clear();
  const uint64_t threads = uint64_t(block.x) * block.y * block.z;
  const uint64_t blocks = uint64_t(grid.x) * grid.y * grid.z;
  if (threads == 0 || threads > kMaxThreads || blocks == 0 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535) {
    error = "invalid launch configuration: grid " + std::to_string(grid.x) + "x" + std::to_string(grid.y) + "x" +
            std::to_string(grid.z) + ", block " + std::to_string(threads) + " threads";
    return cudaErrorInvalidConfiguration;
  }
  if (shared_bytes > kMaxSharedBytes) {
    error = "shared memory: " + std::to_string(shared_bytes) + " bytes asked for, a block has at most " +
            std::to_string(kMaxSharedBytes);
    return cudaErrorInvalidValue;
  }
  if (running_) throw std::logic_error("the emulator runs one grid at a time");
  running_ = true;

  kernel_ = &kernel;
  thread_count_ = threads;
  stacks_.reserve(threads);
  gridDim = grid;
  blockDim = block;
  shared_bytes_ = shared_bytes;
  const std::size_t allocated = (shared_bytes + 2 * kSharedAlignment - 1) / kSharedAlignment * kSharedAlignment;
  shared_ = static_cast<unsigned char*>(std::aligned_alloc(kSharedAlignment, allocated));
#if defined(__SANITIZE_ADDRESS__)
  __asan_poison_memory_region(shared_ + shared_bytes, allocated - shared_bytes);
#endif
  random_.state = schedule.seed;
  main_.adopt_current();
  faulted_ = false;

  // Blocks of a grid may run in any order; kRandom starts somewhere and steps by a number coprime to the count.
  uint64_t first = 0, step = 1;
  if (schedule.kind == Schedule::Kind::kRandom && blocks > 1) {
    first = random_() % blocks;
    do step = 1 + random_() % (blocks - 1);
    while (std::gcd(step, blocks) != 1);
  }
  for (uint64_t i = 0, n = first; i < blocks && !faulted_; ++i, n = (n + step) % blocks) {
    run_block({unsigned(n % grid.x), unsigned(n / grid.x % grid.y), unsigned(n / grid.x / grid.y)});
  }

#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(shared_ + shared_bytes, allocated - shared_bytes);
#endif
  std::free(shared_);
  shared_ = nullptr;
  running_ = false;
  return faulted_ ? cudaErrorLaunchFailure : cudaSuccess;
}

void Scheduler::run_block(uint3 index) {
  blockIdx = index;
  std::memset(shared_, 0xff, shared_bytes_);   // NaN in every floating type: reading before writing shows
  barrier_ = {};
  ready_.fill(0);
  const std::size_t warps = (thread_count_ + kWarpSize - 1) / kWarpSize;
  warps_.assign(warps, {});
  alive_ = thread_count_;
  for (std::size_t t = 0; t < thread_count_; ++t) {
    Thread& thread = threads_[t];
    thread.index = {unsigned(t % blockDim.x), unsigned(t / blockDim.x % blockDim.y),
                    unsigned(t / blockDim.x / blockDim.y)};
    thread.exited = thread.waiting = false;
    thread.fiber.prepare(stacks_.top(t), thread_entry);
    warps_[t / kWarpSize].alive |= 1u << (t % kWarpSize);
    ready_[t / 64] |= uint64_t(1) << (t % 64);
  }
  __tsan_release(&kernel_);                    // what the host wrote happened before every thread's start
  current_ = thread_count_ - 1;                // so that round-robin begins with thread 0
  while (alive_ > 0 && !faulted_) {
    const std::size_t next = pick();
    if (next == kMaxThreads) {
      error = deadlock_report();
      faulted_ = true;
      break;
    }
    current_ = next;
    threadIdx = current().index;
    Fiber::switch_to(main_, current().fiber, true);
  }
  // What the block wrote happened before whatever the host, or the next block, does.
  __tsan_acquire(this);
  for (std::size_t t = 0; t < thread_count_; ++t)
    if (!threads_[t].exited) threads_[t].fiber.abandon(main_);
}

/// First function on every fiber.
void Scheduler::thread_entry() {
  Fiber::entered();
  Scheduler& s = scheduler();
  __tsan_acquire(&s.kernel_);
  try {
    (*s.kernel_)();
    OwnBusiness quiet;
    s.exit_thread();
  } catch (const Fault& fault) {
    OwnBusiness quiet;
    s.record(fault);
  }
  __tsan_release(&s);
  s.switch_away();
  std::abort();  // an exited thread is never resumed
}

/// Threads that wait for this one need not any more: an exited thread counts as arrived.
void Scheduler::exit_thread() {
  const std::size_t warp = current_ / kWarpSize;
  current().exited = true;
  warps_[warp].alive &= ~(1u << (current_ % kWarpSize));
  --alive_;
  ready_[current_ / 64] &= ~(uint64_t(1) << (current_ % 64));
  finish_meetings(warp);
  finish_barrier_if_complete();
}

void Scheduler::record(const Fault& fault) {
  const uint3 t = current().index;
  error = "block (" + std::to_string(blockIdx.x) + ", " + std::to_string(blockIdx.y) + ", " +
          std::to_string(blockIdx.z) + "), thread (" + std::to_string(t.x) + ", " + std::to_string(t.y) + ", " +
          std::to_string(t.z) + "): " + fault.what();
  faulted_ = true;
}

/// The next thread to run, or kMaxThreads when none is ready.
std::size_t Scheduler::pick() {
  std::size_t start = (current_ + 1) % thread_count_;
  if (schedule.kind == Schedule::Kind::kRandom) start = random_() % thread_count_;
  const std::size_t words = (thread_count_ + 63) / 64;
  for (std::size_t i = 0; i <= words; ++i) {
    const std::size_t w = (start / 64 + i) % words;
    uint64_t bits = ready_[w];
    if (i == 0) bits &= ~uint64_t(0) << (start % 64);
    if (bits) return w * 64 + std::size_t(std::countr_zero(bits));
  }
  return kMaxThreads;
}

/// Leaves the running thread, ready or not; comes back when it is picked again.
void Scheduler::switch_away() {
  Thread& self = current();
  const std::size_t next = faulted_ ? kMaxThreads : pick();
  if (next == kMaxThreads) {
    Fiber::switch_to(self.fiber, main_, false);  // nobody is ready: the scheduler decides what that means
  } else if (next != current_) {
    current_ = next;
    threadIdx = current().index;
    Fiber::switch_to(self.fiber, current().fiber, false);
  }
}

void Scheduler::suspend(const char* reason) {
  Thread& self = current();
  self.waiting = true;
  self.waits_for = reason;
  ready_[current_ / 64] &= ~(uint64_t(1) << (current_ % 64));
  switch_away();
}

void Scheduler::wake(std::size_t thread) {
  threads_[thread].waiting = false;
  ready_[thread / 64] |= uint64_t(1) << (thread % 64);
}

void Scheduler::preempt() {
  if (schedule.kind == Schedule::Kind::kRandom && random_() % 4 == 0) switch_away();
}

int Scheduler::barrier(bool predicate) {
  preempt();
  __tsan_release(&barrier_);
  ++barrier_.arrived;
  barrier_.count += predicate;
  Thread& self = current();
  if (barrier_.arrived < alive_) {
    suspend("__syncthreads");
  } else {
    finish_barrier_if_complete();
  }
  __tsan_acquire(&barrier_);
  return int(self.result);
}

void Scheduler::finish_barrier_if_complete() {
  if (barrier_.arrived == 0 || barrier_.arrived < alive_) return;
  for (std::size_t t = 0; t < thread_count_; ++t) {
    Thread& thread = threads_[t];
    const bool at_barrier = thread.waiting && std::strcmp(thread.waits_for, "__syncthreads") == 0;
    if (!at_barrier && t != current_) continue;
    thread.result = uint64_t(barrier_.count);
    if (at_barrier) wake(t);
  }
  barrier_ = {};
}

uint64_t Scheduler::collective(WarpOp op, unsigned mask, uint64_t value, int argument, int width) {
  preempt();
  const std::size_t warp_index = current_ / kWarpSize;
  const unsigned lane = current_ % kWarpSize;
  Warp& warp = warps_[warp_index];
  if (!(mask >> lane & 1)) {
    throw Fault(std::string(op_name(op)) + ": the calling lane " + std::to_string(lane) + " is not in its mask");
  }
  auto meeting = std::find_if(warp.meetings.begin(), warp.meetings.end(),
                              [&](const Rendezvous& m) { return m.mask == mask; });
  if (meeting == warp.meetings.end()) {
    meeting = warp.meetings.insert(warp.meetings.end(), Rendezvous{});
    meeting->mask = mask;
    meeting->op = op;
  } else if (meeting->op != op) {
    throw Fault(std::string(op_name(op)) + " meets " + op_name(meeting->op) +
                " in the same warp: lanes of one mask have diverged");
  }
  meeting->arrived |= 1u << lane;
  meeting->value[lane] = value;
  meeting->argument[lane] = argument;
  meeting->width[lane] = width;
  __tsan_release(&warp);
  Thread& self = current();
  if (meeting->arrived == (mask & warp.alive)) {
    complete(warp_index, *meeting);
    warp.meetings.erase(meeting);
  } else {
    suspend(op_name(op));
  }
  __tsan_acquire(&warps_[warp_index]);
  return self.result;
}

/// After a lane has exited: meetings that only waited for it are complete.
void Scheduler::finish_meetings(std::size_t warp_index) {
  Warp& warp = warps_[warp_index];
  for (std::size_t i = 0; i < warp.meetings.size();) {
    if (warp.meetings[i].arrived == (warp.meetings[i].mask & warp.alive)) {
      complete(warp_index, warp.meetings[i]);
      warp.meetings.erase(warp.meetings.begin() + std::ptrdiff_t(i));
    } else {
      ++i;
    }
  }
}

/// Computes every lane's result and wakes the lanes that wait.
void Scheduler::complete(std::size_t warp_index, Rendezvous& m) {
  const auto& v = m.value;
  uint64_t everyone = 0;
  if (m.op == WarpOp::kReduceMin) everyone = ~uint64_t(0);
  for (int lane = 0; lane < kWarpSize; ++lane) {
    if (!(m.arrived >> lane & 1)) continue;
    if (m.op == WarpOp::kBallot) everyone |= (v[lane] & 1) << lane;
    if (m.op == WarpOp::kReduceAdd) everyone = uint32_t(everyone + v[lane]);
    if (m.op == WarpOp::kReduceMax) everyone = std::max(everyone, v[lane]);
    if (m.op == WarpOp::kReduceMin) everyone = std::min(everyone, v[lane]);
  }
  for (int lane = 0; lane < kWarpSize; ++lane) {
    if (!(m.arrived >> lane & 1)) continue;
    // Shuffles work inside segments of `width` lanes; a source outside the segment means "keep your own value"
    // (CUDA C++ Programming Guide, warp shuffle functions).
    const int segment = lane / m.width[lane] * m.width[lane];
    int source = lane;
    uint64_t result = everyone;
    switch (m.op) {
      case WarpOp::kShuffle: source = segment + (m.argument[lane] & (m.width[lane] - 1)); break;
      case WarpOp::kShuffleXor: source = lane ^ m.argument[lane]; break;
      case WarpOp::kShuffleUp: source = lane - m.argument[lane]; break;
      case WarpOp::kShuffleDown: source = lane + m.argument[lane]; break;
      case WarpOp::kMatchAny:
        result = 0;
        for (int other = 0; other < kWarpSize; ++other)
          if ((m.arrived >> other & 1) && v[other] == v[lane]) result |= uint64_t(1) << other;
        break;
      default: break;
    }
    if (m.op == WarpOp::kShuffle || m.op == WarpOp::kShuffleXor || m.op == WarpOp::kShuffleUp ||
        m.op == WarpOp::kShuffleDown) {
      const bool outside = m.op == WarpOp::kShuffleXor ? source >= segment + m.width[lane]
                                                     : source < segment || source >= segment + m.width[lane];
      if (outside) source = lane;
      if (!(m.arrived >> source & 1)) {
        throw Fault(std::string(op_name(m.op)) + ": lane " + std::to_string(lane) + " reads lane " +
                    std::to_string(source) + ", which takes no part");
      }
      result = v[source];
    }
    Thread& thread = threads_[warp_index * kWarpSize + std::size_t(lane)];
    thread.result = result;
    if (thread.waiting) wake(warp_index * kWarpSize + std::size_t(lane));
  }
}

std::string Scheduler::deadlock_report() const {
  std::string text = "deadlock in block (" + std::to_string(blockIdx.x) + ", " + std::to_string(blockIdx.y) + ", " +
                     std::to_string(blockIdx.z) + "): no thread can go on.";
  for (std::size_t w = 0; w < warps_.size(); ++w) {
    // Threads of a warp that wait for the same thing share a line.
    for (std::size_t first = w * kWarpSize; first < std::min(thread_count_, (w + 1) * kWarpSize); ++first) {
      const Thread& thread = threads_[first];
      if (thread.exited) continue;
      std::size_t last = first;
      while (last + 1 < std::min(thread_count_, (w + 1) * kWarpSize) && !threads_[last + 1].exited &&
             std::strcmp(threads_[last + 1].waits_for, thread.waits_for) == 0)
        ++last;
      text += "\n  warp " + std::to_string(w) + ", lanes " + std::to_string(first % kWarpSize) + "-" +
              std::to_string(last % kWarpSize) + ": wait at " + thread.waits_for;
      first = last;
    }
  }
  return text;
}

}  // namespace

void set_schedule(const Schedule& schedule) { scheduler().schedule = schedule; }
cudaError_t run_grid(dim3 grid, dim3 block, std::size_t shared_bytes, const std::function<void()>& kernel) {
  return scheduler().run(grid, block, shared_bytes, kernel);
}
const std::string& last_error() { return scheduler().error; }
void* shared_memory() { return scheduler().shared(); }
void block_barrier() { block_barrier_count(false); }
int block_barrier_count(bool predicate) {
  OwnBusiness quiet;
  return scheduler().barrier(predicate);
}
uint64_t warp_collective(WarpOp op, unsigned mask, uint64_t value, int argument, int width) {
  OwnBusiness quiet;
  return scheduler().collective(op, mask, value, argument, width);
}
void preemption_point() {
  OwnBusiness quiet;
  scheduler().preempt();
}

}  // namespace dsa::emulator
