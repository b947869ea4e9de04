/// @file scheduler.hpp
/// The state of the emulated machine. Internal to the emulator; kernels see emulator.hpp and hopper.hpp.
///
/// One object, `scheduler()`, holds the resident blocks, their threads, and the asynchronous operations under way. The
/// other files of this folder are the instructions, a file per family, and work on this state.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "emulator.hpp"
#include "fiber.hpp"
#include "hopper.hpp"
#include "memory.hpp"
#include "running.hpp"
#include "sanitizer.hpp"
#include "trace.hpp"

namespace dsa::emulator {

inline constexpr std::size_t kWarpSize = 32;
inline constexpr std::size_t kWarpgroupSize = 128;
inline constexpr std::size_t kMaxThreads = 1024;     // of a block
static_assert(kMaxWarps == kMaxThreads / kWarpSize);

/// splitmix64 (Steele, Lea, Flood 2014). Not the standard library's engines: their code would be shared with instrumented files in
/// a thread-sanitizer build, and then reported.
struct Random {
  uint64_t state = 0;
  uint64_t operator()() {
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
  bool one_in(uint64_t n) { return (*this)() % n == 0; }
};

struct Thread;
struct Block;
struct Mbarrier;

// ---- Asynchronous operations ---------------------------------------------------------------------------------
/// Something under way: one or two steps (read the source, write the destination) that happen when the schedule says
/// so, at the latest when a thread waits for them.
struct AsyncOp {
  Thread* thread = nullptr;              // that issued it
  const void* pc = nullptr;              // where
  const char* name = "";                 // "cp.async", ...
  std::vector<std::function<void()>> steps;
  std::size_t done = 0;
  bool patient = false;                  // happens only when no thread can go on without it
  uint64_t end = 0;                      // on the modelled clock
  struct Sleeper { Thread* thread; std::size_t steps; };
  std::vector<Sleeper> sleepers;
  bool finished() const { return done == steps.size(); }
};

inline std::shared_ptr<AsyncOp> new_op(Thread& thread, const void* pc, const char* name) {
  auto op = std::make_shared<AsyncOp>();
  op->thread = &thread, op->pc = pc, op->name = name;
  return op;
}

/// cp.async of one thread between two commits or arrivals; they land together.
struct CopyBatch {
  struct Copy {
    unsigned char* to;
    const unsigned char* from;
    unsigned bytes, source_bytes;
    const void* pc;
  };
  std::vector<Copy> copies;
  uint64_t group = 0;                    // number of the cp.async group it belongs to
  Mbarrier* arrival = nullptr;           // arrives when this batch, and so all earlier ones, have landed
  uint64_t bytes = 0;                    // read from global memory
  bool early = false;                    // copies are made as they are issued
  uint32_t tick = 0;                     // of the engine
  Clock clock;  // what the arrival releases: of the warp when the batch was closed, and the tick
  std::shared_ptr<AsyncOp> op;
};

// ---- wgmma ----------------------------------------------------------------------------------------------------
/// Accumulators in flight: the true values live here while the registers of the threads hold poison.
struct AccumulatorChain {
  int n = 0;
  std::vector<float> values;                            // [64][n]
  std::array<float*, kWarpgroupSize> registers{};       // null: this thread takes no part (any more)
  uint64_t last_op = 0;
  std::size_t users = 0;
};

struct WgmmaOp {
  WgmmaShape shape{};
  uint64_t a_descriptor = 0, b_descriptor = 0;
  bool accumulate = false;
  std::size_t issued_by = 0;                            // threads so far
  std::vector<std::array<uint32_t, 4>> a;               // [128] registers, when A comes from registers
  std::shared_ptr<AccumulatorChain> chain;
  Clock clock;                                          // what all warps may rely on
  Thread* leader = nullptr;                             // the warpgroup's first thread, which stands for all
  std::size_t issuer = 0;                               // the thread that got here first
  const void* pc = nullptr;
  std::array<std::shared_ptr<AsyncOp>, 4> parts;        // of each warp, once all 128 threads have issued it
};

/// An instruction that all threads of a warpgroup must execute, the same one in the same order (PTX: `.aligned`). Two places with
/// the same instruction are not told apart: compilers merge and split those.
struct AlignedStep {
  const char* name;
  std::optional<unsigned> argument;                     // of wait_group and setmaxnreg
  std::size_t first;                                    // the thread that got here first
  const void* pc;                                       // where it stands
  std::size_t came = 0;                                 // threads so far
};

struct Warpgroup {
  std::deque<AlignedStep> steps;                        // some thread has not come to them yet
  uint64_t first_step = 0;                              // number of steps.front()
  std::deque<std::shared_ptr<WgmmaOp>> ops;             // some thread has not waited for them yet
  uint64_t first_op = 0;                                // number of ops.front()
  std::array<uint64_t, 4> executed{};                   // by warp: ops before this number are done; they run in order
  std::vector<std::shared_ptr<AccumulatorChain>> chains;
};

// ---- Threads, warps, blocks -------------------------------------------------------------------------------------
struct ThreadState {
  Block* block = nullptr;
  uint3 index{};
  std::size_t number = 0;                // in the block
  char* stack_top = nullptr;
  bool exited = false;
  bool waiting = false;
  const char* waits_at = "";             // the instruction
  std::string (*wait_details)(const Thread&) = nullptr;
  const void* waits_for = nullptr;       // the object, for wait_details
  uint64_t wait_argument = 0;
  const void* pc = nullptr;              // of its last call into the emulator
  uint64_t calls = 0;
  const char* role = "";                 // as the kernel names them: trace.cuh
  const char* step = nullptr;
  uint64_t step_began = 0;
  uint64_t result = 0;                   // of a collective, put here by the lane that completed it

  std::deque<CopyBatch> copies;          // cp.async not yet landed; the last one may still be open
  bool copies_open = false;
  uint64_t copy_groups = 0;              // committed so far
  std::deque<std::pair<uint64_t, uint32_t>> copy_ticks;   // (group, tick) of batches nobody has waited for
  struct Store { uint64_t group; std::shared_ptr<AsyncOp> op; bool waited_for; };
  std::deque<Store> bulk;                // not yet finished, or not yet waited for
  uint64_t bulk_groups = 0;

  uint64_t aligned_steps = 0;            // executed so far
  uint64_t wgmma_issued = 0;
  uint64_t wgmma_waited = 0;
  std::vector<uint64_t> wgmma_groups;    // wgmma_issued at each commit
  bool wgmma_fenced = false;
  uint64_t cluster_arrivals = 0;         // the cluster phase that its last arrival was for, plus one
  std::unordered_map<const Mbarrier*, uint64_t> phases_seen;

  std::size_t warp() const { return number / kWarpSize; }
  unsigned lane() const { return unsigned(number % kWarpSize); }
};

struct Thread : ThreadState {
  Fiber fiber;                           // kept from block to block
  Engine engine;
  void reset() { static_cast<ThreadState&>(*this) = {}; }
};

/// What a lane brings to a warp collective.
struct LaneArguments {
  uint64_t value = 0;
  int argument = 0;
  int width = 32;
  const void* address = nullptr;         // ldmatrix, stmatrix
  uint32_t* registers = nullptr;
};

/// Lanes of one warp that have met at a collective with the same mask, so far.
struct Rendezvous {
  unsigned mask = 0;
  unsigned arrived = 0;
  WarpOp op = WarpOp::kSync;
  std::array<LaneArguments, kWarpSize> lanes{};
};

struct Warp {
  unsigned alive = 0;                    // lanes that exist and have not exited
  std::vector<Rendezvous> meetings;      // usually none or one; several when a warp has diverged
  unsigned registers = 0;                // per thread, as setmaxnreg changes it
  unsigned registers_wanted = 0;         // an increase it waits for
  unsigned slowness = 0;                 // under a random schedule: runs in one of 4^slowness turns it could
};

/// A hardware barrier of the block: 0 is __syncthreads, 1 to 15 are named.
struct Barrier {
  std::size_t expected = 0;              // 0: nobody has come yet
  std::size_t arrived = 0;
  int count = 0;                         // of true predicates
  std::vector<bool> came;                // by thread
  std::vector<Thread*> sleepers;
  Clock clock;                           // of those who came
  Clock opened;                          // clock when it last opened: what those who waited may rely on
};

struct Mbarrier {
  uint64_t* address = nullptr;
  Block* block = nullptr;
  unsigned count = 0;                    // arrivals of a phase
  int64_t pending = 0;                   // arrivals missing
  int64_t tx = 0;                        // bytes expected and not yet complete
  uint64_t phase = 0;                    // completed phases
  std::size_t ordinal = 0;               // how many barriers the block initialised before
  const void* pc = nullptr;              // of mbarrier_init
  Clock clock;                           // of those who arrived
  Clock turned;                          // clock when the last phase completed
  std::vector<Thread*> sleepers;
  struct Repeat { Thread* thread; uint64_t phase; const void* pc; };
  std::vector<Repeat> repeats;           // waits for a phase that the thread had seen before
};

struct Cluster {
  std::vector<Block*> blocks;            // by rank
  std::size_t alive = 0;                 // threads
  std::size_t arrived = 0;               // at barrier.cluster, in this phase
  std::size_t arrived_and_left = 0;      // of those, exited since
  uint64_t phase = 0;
  std::vector<Thread*> sleepers;
  Clock clock, opened;
};

struct Block {
  std::size_t slot = 0;
  uint3 index{};
  unsigned rank = 0;                     // in its cluster
  Cluster* cluster = nullptr;
  unsigned char* shared = nullptr;
  std::vector<Thread*> threads;
  std::vector<Warp> warps;
  std::vector<Warpgroup> warpgroups;
  std::array<Barrier, 16> barriers;
  std::map<const uint64_t*, Mbarrier> mbarriers;
  std::size_t alive = 0;
  std::size_t registers_free = 0;        // in the pool that setmaxnreg moves registers through
  uint64_t copy_free = 0;                // modelled: bytes that could have been copied until the next copy begins
  uint64_t tensor_free = 0;              // modelled: when the next product can begin
};

// ---- The machine -------------------------------------------------------------------------------------------------
class Scheduler {
 public:
  cudaError_t run(dim3 grid, dim3 block, unsigned cluster, std::size_t shared_bytes,
                  const std::function<void()>& kernel);

  Schedule schedule;
  std::string error;
  std::size_t shared_bytes = 0;
  std::vector<Block> blocks;             // resident, by slot
  std::vector<Clock> clocks;             // by slot * kWritersPerBlock + warp
  Random random;

  Thread& self() { return *current_; }
  std::size_t clock_index(const Thread& thread) const { return thread.block->slot * kWritersPerBlock + thread.warp(); }
  std::size_t engine_index(const Thread& thread) const { return clock_index(thread) + kMaxWarps; }
  /// The number of the next asynchronous copy of the thread's warp.
  uint32_t next_copy(const Thread& thread) { return ++clocks[engine_index(thread)].seen[engine_index(thread)]; }
  Clock& clock_of(const Thread& thread) { return clocks[clock_index(thread)]; }
  /// The resident block whose shared memory holds this address, or null.
  Block* block_of(const void* address);

  /// Lets another thread run, perhaps: first statement of every instruction.
  void preempt(const void* pc);
  /// The running thread stops until wake().
  void suspend(const char* at, const void* object = nullptr, uint64_t argument = 0,
               std::string (*details)(const Thread&) = nullptr);
  void wake(Thread& thread);

  /// Release and acquire: of the running thread's warp, at objects that synchronise.
  void release(Clock& object);
  void acquire(const Clock& object);

  // Asynchronous operations.
  enum class Landing { kEarly, kAnyTime, kLate };
  Landing choose_landing();
  /// Puts an operation under way: at once, or later.
  void start(std::shared_ptr<AsyncOp> op) { start_at(std::move(op), choose_landing()); }
  void start_at(std::shared_ptr<AsyncOp> op, Landing landing);
  /// Runs steps until `steps` of them are done.
  void force(AsyncOp& op, std::size_t steps);
  /// Says that `steps` steps are done, by whatever means, and wakes who waits for them.
  void set_done(AsyncOp& op, std::size_t steps);
  /// The running thread waits until `steps` steps are done.
  void await(AsyncOp& op, std::size_t steps, const char* instruction);
  /// Judges an access made now on behalf of `thread`; ends the launch when it is not sound.
  /// @param issued  what the issuing threads have released: the access comes after that
  /// @param engine  the writer is the warp's engine, at the count that `clock` has for it
  void judge_for(Thread& thread, const Access& access, const Clock& clock, const void* issued, bool engine = false);

  // The modelled clock.
  bool tracing = false;
  Trace trace;
  void record(Span::Kind kind, const Thread& thread, uint64_t begin, uint64_t end, std::string label);
  void end_step(Thread& thread);
  /// A copy of `bytes` issued at `time` by `thread`: when its data are there.
  uint64_t copy_end(Thread& thread, uint64_t time, uint64_t bytes, const char* instruction);

  void count_wgmma(const WgmmaShape& shape) { trace.wgmma_flop += 2u * 64u * uint64_t(shape.n) * uint64_t(shape.k()); }

  [[noreturn]] void fail(Thread* thread, const std::string& verdict, const void* pc);

 private:
  bool next_cluster();
  void begin_cluster(std::size_t first_slot, uint64_t number);
  [[noreturn]] static void thread_entry();
  void exit_thread();
  void end_block(Block& block);
  Thread* pick();
  Thread* pick_by_time();
  bool land_something(bool also_patient);
  void switch_away();
  void enter(Thread& thread);
  std::string deadlock_report();
  std::size_t bit_of(const Thread& thread) const { return thread.block->slot * kMaxThreads + thread.number; }

  const std::function<void()>* kernel_ = nullptr;
  StackPool stacks_;
  Fiber main_;
  bool on_main_ = true;
  std::vector<std::unique_ptr<Thread>> threads_;   // by slot * kMaxThreads + number
  std::vector<Cluster> clusters_;
  std::vector<uint64_t> ready_;                    // one bit per thread
  std::vector<std::shared_ptr<AsyncOp>> pending_;
  Thread* current_ = nullptr;
  Running running_{};
  std::size_t last_bit_ = 0;
  uint64_t calls_ = 0;                             // of preempt() since the last switch
  bool faulted_ = false;
  bool active_ = false;
  // The grid.
  unsigned cluster_blocks_ = 1;
  uint64_t clusters_total_ = 0, clusters_begun_ = 0, first_cluster_ = 0, cluster_step_ = 1;
};

Scheduler& scheduler();

/// The running thread has broken a rule, in the instruction that it called last.
[[noreturn]] inline void broken(const std::string& verdict) {
  scheduler().fail(&scheduler().self(), verdict, scheduler().self().pc);
}

/// While it lives, the thread waits: recorded when the modelled clock has moved.
class WaitSpan {
 public:
  WaitSpan(Thread& thread, std::string (*what)(const void*), const void* object);
  ~WaitSpan();
  WaitSpan(const WaitSpan&) = delete;
  WaitSpan& operator=(const WaitSpan&) = delete;

 private:
  Thread& thread_;
  std::string (*what_)(const void*);
  const void* object_;
  uint64_t begin_;
};

/// Unnamed parts of instructions that other files need.
void exit_from_collectives(Thread& thread);                    // collectives.cpp
/// The caller has released the barrier, for the sanitizer: as a thread or as an engine.
void mbarrier_arrive_for(Mbarrier& barrier, unsigned count, const Clock& clock, Thread& thread, const void* pc);
void mbarrier_complete_tx(Mbarrier& barrier, int64_t bytes, const Clock& done);
Mbarrier& find_mbarrier(uint64_t* address, const char* instruction, const void* pc);
void mbarrier_redraw(Mbarrier& barrier);
std::string mbarrier_name(const Mbarrier& barrier);
/// The calling thread comes to an instruction that its whole warpgroup must execute.
void aligned_step(const char* name, const void* pc, std::optional<unsigned> argument = {});
void check_warpgroups_at_exit(Block& block);
void check_mbarriers_at_exit(Block& block);
void check_async_at_exit(Thread& thread);

}  // namespace dsa::emulator
