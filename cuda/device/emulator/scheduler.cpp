#include "scheduler.hpp"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "source.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace dsa::emulator {

uint3 threadIdx;
uint3 blockIdx;
dim3 blockDim;
dim3 gridDim;
const Running* running = nullptr;

namespace {

constexpr std::size_t kSharedAlignment = 1024;
constexpr uint64_t kPatience = 4096;   // calls a thread makes before round robin passes on: it may be polling

/// Leaves the scheduler's own stack when an operation that it ran broke a rule.
struct Failed {};

std::string text(const uint3& index) {
  return "(" + std::to_string(index.x) + ", " + std::to_string(index.y) + ", " + std::to_string(index.z) + ")";
}

/// The start of a block's shared memory, with room behind it that no kernel may touch.
unsigned char* allocate_shared(std::size_t bytes) {
  const std::size_t allocated = (bytes + 2 * kSharedAlignment - 1) / kSharedAlignment * kSharedAlignment;
  auto* memory = static_cast<unsigned char*>(std::aligned_alloc(kSharedAlignment, allocated));
  if (!memory) throw std::bad_alloc();
#if defined(__SANITIZE_ADDRESS__)
  __asan_poison_memory_region(memory + bytes, allocated - bytes);
#endif
  return memory;
}

/// Whether its time is that of the trace. Other blocks need not run in its order.
bool in_first_cluster(const Thread& thread) {
  const uint3& index = thread.block->cluster->blocks.front()->index;
  return index.x == 0 && index.y == 0 && index.z == 0;
}

void free_shared(unsigned char* memory, [[maybe_unused]] std::size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  const std::size_t allocated = (bytes + 2 * kSharedAlignment - 1) / kSharedAlignment * kSharedAlignment;
  __asan_unpoison_memory_region(memory + bytes, allocated - bytes);
#endif
  std::free(memory);
}

}  // namespace

Scheduler& scheduler() {
  static Scheduler instance;
  return instance;
}

// ---- A grid ---------------------------------------------------------------------------------------------------
cudaError_t Scheduler::run(dim3 grid, dim3 block, unsigned cluster, std::size_t bytes,
                           const std::function<void()>& kernel) {
  OwnBusiness quiet;
  error.clear();
  const uint64_t threads = uint64_t(block.x) * block.y * block.z;
  const uint64_t total = uint64_t(grid.x) * grid.y * grid.z;
  if (threads == 0 || threads > kMaxThreads || total == 0 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535) {
    error = "invalid launch configuration: grid " + std::to_string(grid.x) + "x" + std::to_string(grid.y) + "x" +
            std::to_string(grid.z) + ", block " + std::to_string(threads) + " threads";
    return cudaErrorInvalidConfiguration;
  }
  if (cluster == 0 || cluster > 8 || grid.x % cluster != 0) {
    error = "invalid launch configuration: clusters of " + std::to_string(cluster) + " blocks in a grid of " +
            std::to_string(grid.x) + " in x";
    return cudaErrorInvalidConfiguration;
  }
  if (bytes > kMaxSharedMemory) {
    error = "shared memory: " + std::to_string(bytes) + " bytes asked for, a block has at most " +
            std::to_string(kMaxSharedMemory);
    return cudaErrorInvalidValue;
  }
  if (active_) throw std::logic_error("the emulator runs one grid at a time");
  active_ = true;
  trace_launch(grid, block, bytes);

  kernel_ = &kernel;
  gridDim = grid;
  blockDim = block;
  shared_bytes = bytes;
  faulted_ = false;
  random.state = schedule.seed;
  main_.adopt_current();
  cluster_blocks_ = cluster;
  clusters_total_ = total / cluster;
  clusters_begun_ = 0;
  // Blocks of a grid may run in any order; a random schedule starts somewhere and steps by a number coprime to the count.
  const bool shuffled = schedule.kind != Schedule::Kind::kRoundRobin;
  first_cluster_ = 0, cluster_step_ = 1;
  if (shuffled && clusters_total_ > 1) {
    first_cluster_ = random() % clusters_total_;
    do cluster_step_ = 1 + random() % (clusters_total_ - 1);
    while (std::gcd(cluster_step_, clusters_total_) != 1);
  }

  uint64_t resident = schedule.resident_clusters ? schedule.resident_clusters : shuffled ? 2 : 1;
  resident = std::min(resident, clusters_total_);
  const std::size_t slots = resident * cluster;
  stacks_.reserve(slots * kMaxThreads);
  while (threads_.size() < slots * kMaxThreads) threads_.push_back(std::make_unique<Thread>());
  blocks = std::vector<Block>(slots);
  clusters_ = std::vector<Cluster>(resident);
  clocks.assign(slots * kWritersPerBlock, {});
  for (std::size_t w = 0; w < clocks.size(); ++w) {
    clocks[w].seen.assign(clocks.size(), 0);
    clocks[w].fenced.assign(clocks.size(), 0);
    if (w % kWritersPerBlock < kMaxWarps) clocks[w].seen[w] = 1;   // an engine's first copy is number 1
  }
  ready_.assign(slots * kMaxThreads / 64, 0);
  pending_.clear();
  last_bit_ = slots * kMaxThreads - 1;   // so that round robin begins with thread 0
  for (Block& b : blocks) {
    b.slot = std::size_t(&b - blocks.data());
    b.shared = allocate_shared(bytes);
  }

  try {
    for (std::size_t c = 0; c < resident; ++c) begin_cluster(c * cluster, clusters_begun_++);
    while (!faulted_) {
      Thread* next = pick();
      if (!next) {
        const bool finished = std::all_of(blocks.begin(), blocks.end(), [](const Block& b) { return b.alive == 0; });
        if (finished) break;
        error = deadlock_report();
        faulted_ = true;
        break;
      }
      enter(*next);
      on_main_ = false;
      Fiber::switch_to(main_, next->fiber, true);
      on_main_ = true;
      while (!faulted_ && next_cluster()) {
      }
    }
  } catch (const Failed&) {   // `error` has the words
  }

  acquire_order(this);
  for (Block& b : blocks) {
    for (Thread* thread : b.threads)
      if (!thread->exited) thread->fiber.abandon(main_);
    if (b.alive > 0) end_shared(b.slot);
    free_shared(b.shared, bytes);
  }
  blocks.clear();
  pending_.clear();
  current_ = nullptr;
  active_ = false;
  return faulted_ ? cudaErrorLaunchFailure : cudaSuccess;
}

/// Replaces a cluster that has finished by the next of the grid. False when there is none of either.
bool Scheduler::next_cluster() {
  if (clusters_begun_ == clusters_total_) return false;
  for (Cluster& cluster : clusters_) {
    if (cluster.alive > 0) continue;
    begin_cluster(std::size_t(&cluster - clusters_.data()) * cluster_blocks_, clusters_begun_++);
    return true;
  }
  return false;
}

void Scheduler::begin_cluster(std::size_t first_slot, uint64_t number) {
  const uint64_t place = (first_cluster_ + number % clusters_total_ * cluster_step_) % clusters_total_;
  Cluster& cluster = clusters_[first_slot / cluster_blocks_];
  cluster = {};
  acquire_order(this);                        // the blocks that had this memory before are over
  const std::size_t threads = std::size_t(blockDim.x) * blockDim.y * blockDim.z;
  for (unsigned rank = 0; rank < cluster_blocks_; ++rank) {
    const uint64_t n = place * cluster_blocks_ + rank;
    Block& block = blocks[first_slot + rank];
    const std::size_t slot = block.slot;
    unsigned char* shared = block.shared;
    block = {};
    block.slot = slot;
    block.shared = shared;
    block.rank = rank;
    block.cluster = &cluster;
    block.index = {unsigned(n % gridDim.x), unsigned(n / gridDim.x % gridDim.y), unsigned(n / gridDim.x / gridDim.y)};
    block.warps.resize((threads + kWarpSize - 1) / kWarpSize);
    block.warpgroups.resize((threads + kWarpgroupSize - 1) / kWarpgroupSize);
    block.alive = threads;
    // What ptxas would have to work with: the register file shared out, in steps of 8 (PTX: setmaxnreg).
    const std::size_t registers = std::min<std::size_t>(65536 / (block.warps.size() * kWarpSize) / 8 * 8, 248);
    for (Warp& warp : block.warps) {
      warp.registers = unsigned(registers);
      // Half of the random schedules have fast and slow warps: a bug may need one to be far behind.
      if (schedule.kind == Schedule::Kind::kRandom && schedule.seed % 2) warp.slowness = unsigned(random() % 4);
    }
    cluster.blocks.push_back(&block);
    cluster.alive += threads;
    std::memset(shared, 0xff, shared_bytes);   // NaN in every floating type: reading before writing shows
    begin_shared(slot, shared, shared_bytes);
    for (std::size_t t = 0; t < threads; ++t) {
      Thread& thread = *threads_[slot * kMaxThreads + t];
      thread.reset();
      thread.block = &block;
      thread.number = t;
      thread.index = {unsigned(t % blockDim.x), unsigned(t / blockDim.x % blockDim.y),
                      unsigned(t / blockDim.x / blockDim.y)};
      thread.stack_top = stacks_.top(slot * kMaxThreads + t);
      thread.fiber.prepare(thread.stack_top, thread_entry);
      block.threads.push_back(&thread);
      block.warps[thread.warp()].alive |= 1u << thread.lane();
      ready_[bit_of(thread) / 64] |= uint64_t(1) << (bit_of(thread) % 64);
    }
  }
  release_order(&kernel_);                    // all of this, and what the host wrote, comes before every thread's start
}

/// First function on every fiber.
void Scheduler::thread_entry() {
  Fiber::entered();
  Scheduler& s = scheduler();
  acquire_order(&s.kernel_);
  running = &s.running_;
  (*s.kernel_)();
  {
    OwnBusiness quiet;
    s.exit_thread();
  }
  running = nullptr;
  release_order(&s);
  s.switch_away();
  std::abort();  // an exited thread is never resumed
}

/// Threads that wait for this one need not any more: an exited thread counts as arrived.
void Scheduler::exit_thread() {
  Thread& thread = self();
  end_step(thread);
  thread.pc = nullptr;
  check_async_at_exit(thread);
  Block& block = *thread.block;
  thread.exited = true;
  block.warps[thread.warp()].alive &= ~(1u << thread.lane());
  ready_[bit_of(thread) / 64] &= ~(uint64_t(1) << (bit_of(thread) % 64));
  --block.alive;
  --block.cluster->alive;
  exit_from_collectives(thread);
  if (block.alive == 0) end_block(block);
}

void Scheduler::end_block(Block& block) {
  for (std::size_t i = 0; i < pending_.size(); ++i) {
    AsyncOp& op = *pending_[i];
    if (op.thread->block != &block) continue;
    // Nobody waited for it; it happens all the same, before the shared memory goes to another block.
    force(op, op.steps.size());
  }
  std::erase_if(pending_, [](const auto& op) { return op->finished(); });
  check_warpgroups_at_exit(block);
  check_mbarriers_at_exit(block);
  end_shared(block.slot);
}

// ---- Whose turn it is --------------------------------------------------------------------------------------------
void Scheduler::enter(Thread& thread) {
  current_ = &thread;
  last_bit_ = bit_of(thread);
  calls_ = 0;
  threadIdx = thread.index;
  blockIdx = thread.block->index;
  running_ = {thread.block->slot, clock_index(thread), thread.number,
              thread.stack_top - StackPool::kStackBytes, thread.stack_top, &clock_of(thread)};
}

/// The next thread to run, or null when none is ready and nothing is under way.
Thread* Scheduler::pick() {
  if (tracing) return pick_by_time();
  const bool random_order = schedule.kind != Schedule::Kind::kRoundRobin;
  if (random_order && !pending_.empty() && random.one_in(8)) land_something(false);
  int refusals = 0;
  do {
    const std::size_t bits = ready_.size() * 64;
    const std::size_t start = random_order ? random() % bits : (last_bit_ + 1) % bits;
    Thread* starved = nullptr;
    for (std::size_t i = 0; i <= ready_.size(); ++i) {
      const std::size_t word = (start / 64 + i) % ready_.size();
      uint64_t ready = ready_[word];
      if (i == 0) ready &= ~uint64_t(0) << (start % 64);
      for (; ready; ready &= ready - 1) {
        Thread* thread = threads_[word * 64 + std::size_t(std::countr_zero(ready))].get();
        const unsigned slowness = thread->block->warps[thread->warp()].slowness;
        if (slowness > 0 && refusals < 64 && !random.one_in(uint64_t(1) << 2 * slowness)) {
          ++refusals;
          starved = thread;
          break;                         // some other warp, perhaps
        }
        if (schedule.kind != Schedule::Kind::kStarve || thread->warp() != schedule.seed % thread->block->warps.size())
          return thread;
        starved = thread;
      }
    }
    if (starved) return starved;
  } while (land_something(true));
  return nullptr;
}

/// Whatever is earliest on the modelled clock: the events of a simulation.
Thread* Scheduler::pick_by_time() {
  for (;;) {
    Thread* first = nullptr;
    for (std::size_t word = 0; word < ready_.size(); ++word) {
      for (uint64_t ready = ready_[word]; ready; ready &= ready - 1) {
        Thread* thread = threads_[word * 64 + std::size_t(std::countr_zero(ready))].get();
        // Lanes of a warp take turns, as if in lock-step: what one lane waits for, the others have issued by then.
        const auto key = [&](const Thread& t) { return std::pair(clock_of(t).time, t.calls); };
        if (!first || key(*thread) < key(*first)) first = thread;
      }
    }
    std::erase_if(pending_, [](const auto& op) { return op->finished(); });
    const auto op = std::min_element(pending_.begin(), pending_.end(),
                                     [](const auto& a, const auto& b) { return a->end < b->end; });
    if (op == pending_.end() || (first && clock_of(*first).time <= (*op)->end)) return first;
    const std::shared_ptr<AsyncOp> next = *op;
    force(*next, next->done + 1);
  }
}

/// One step of one operation under way; false when there is none. Patient ones come last.
bool Scheduler::land_something(bool also_patient) {
  std::erase_if(pending_, [](const auto& op) { return op->finished(); });
  const std::size_t first =
      schedule.kind == Schedule::Kind::kRoundRobin || pending_.empty() ? 0 : random() % pending_.size();
  for (const bool patient : {false, true}) {
    if (patient && !also_patient) break;
    for (std::size_t i = 0; i < pending_.size(); ++i) {
      const std::shared_ptr<AsyncOp> op = pending_[(first + i) % pending_.size()];   // steps may start other operations
      if (op->patient && !patient) continue;
      force(*op, op->done + 1);
      return true;
    }
  }
  return false;
}

/// Leaves the running thread, ready or not; comes back when it is picked again.
void Scheduler::switch_away() {
  Thread& thread = self();
  Thread* next = nullptr;
  if (!faulted_) {
    OwnBusiness quiet;   // an exited thread comes here without
    next = pick();
  }
  // A finished cluster makes room for another, which only the scheduler's own stack can start.
  if (!next || (thread.exited && thread.block->cluster->alive == 0)) {
    Fiber::switch_to(thread.fiber, main_, false);
  } else if (next != &thread) {
    enter(*next);
    Fiber::switch_to(thread.fiber, next->fiber, false);
  }
}

void Scheduler::preempt(const void* pc) {
  Thread& thread = self();
  thread.pc = pc;
  if (thread.lane() == 0) clock_of(thread).time += Model::kCall;
  if (tracing && in_first_cluster(thread)) {
    ++thread.calls;
    switch_away();
    return;
  }
  const bool random_order = schedule.kind != Schedule::Kind::kRoundRobin;
  const bool slow = thread.block->warps[thread.warp()].slowness > 0;
  if (random_order ? slow || random.one_in(4) : ++calls_ % kPatience == 0) switch_away();
}

void Scheduler::suspend(const char* at, const void* object, uint64_t argument,
                        std::string (*details)(const Thread&)) {
  Thread& thread = self();
  thread.waiting = true;
  thread.waits_at = at;
  thread.waits_for = object;
  thread.wait_argument = argument;
  thread.wait_details = details;
  ready_[bit_of(thread) / 64] &= ~(uint64_t(1) << (bit_of(thread) % 64));
  switch_away();
}

void Scheduler::wake(Thread& thread) {
  thread.waiting = false;
  ready_[bit_of(thread) / 64] |= uint64_t(1) << (bit_of(thread) % 64);
}

Block* Scheduler::block_of(const void* address) {
  const auto* byte = static_cast<const unsigned char*>(address);
  for (Block& block : blocks)
    if (byte >= block.shared && byte < block.shared + shared_bytes) return &block;
  return nullptr;
}

// ---- Happened-before ---------------------------------------------------------------------------------------------
void Clock::join(const Clock& other) {
  if (seen.size() < other.seen.size()) seen.resize(other.seen.size()), fenced.resize(other.seen.size());
  for (std::size_t i = 0; i < other.seen.size(); ++i) {
    seen[i] = std::max(seen[i], other.seen[i]);
    fenced[i] = std::max(fenced[i], other.fenced[i]);
  }
  time = std::max(time, other.time);
}

void Scheduler::release(Clock& object) {
  Clock& clock = clock_of(self());
  object.join(clock);
  ++clock.seen[clock_index(self())];
}

void Scheduler::acquire(const Clock& object) { clock_of(self()).join(object); }

// ---- Asynchronous operations ----------------------------------------------------------------------------------------
Scheduler::Landing Scheduler::choose_landing() {
  if (tracing) return Landing::kAnyTime;
  using L = Schedule::Landing;
  L landing = schedule.landing;
  if (landing == L::kBySeed) {
    if (schedule.kind == Schedule::Kind::kRoundRobin) return Landing::kLate;
    landing = std::array{L::kMixed, L::kEarly, L::kLate}[schedule.seed % 3];
  }
  if (landing == L::kMixed) return std::array{Landing::kEarly, Landing::kAnyTime, Landing::kLate}[random() % 3];
  return landing == L::kEarly ? Landing::kEarly : Landing::kLate;
}

void Scheduler::start_at(std::shared_ptr<AsyncOp> op, Landing landing) {
  if (landing == Landing::kEarly) {
    force(*op, op->steps.size());
  } else {
    op->patient = landing == Landing::kLate;
    pending_.push_back(std::move(op));
  }
}

void Scheduler::force(AsyncOp& op, std::size_t steps) {
  while (op.done < steps) {
    const std::size_t step = op.done;
    op.steps[step]();
    set_done(op, step + 1);
  }
}

void Scheduler::set_done(AsyncOp& op, std::size_t steps) {
  op.done = std::max(op.done, steps);
  std::erase_if(op.sleepers, [&](const AsyncOp::Sleeper& sleeper) {
    if (sleeper.steps > op.done) return false;
    wake(*sleeper.thread);
    return true;
  });
}

uint64_t Scheduler::copy_end(Thread& thread, uint64_t time, uint64_t bytes, const char* instruction) {
  Block& block = *thread.block;
  if (tracing) trace.copied[instruction] += bytes;
  const uint64_t begin = std::max(time * Model::kBytesPerClock, block.copy_free);
  block.copy_free = begin + bytes;
  const uint64_t end = block.copy_free / Model::kBytesPerClock;
  record(Span::Kind::kCopy, thread, begin / Model::kBytesPerClock, end, instruction);
  return end + Model::kLatency;
}

void Scheduler::await(AsyncOp& op, std::size_t steps, const char* instruction) {
  const WaitSpan span(
      self(), [](const void* name) { return std::string(static_cast<const char*>(name)); }, instruction);
  clock_of(self()).time = std::max(clock_of(self()).time, op.end);
  if (op.done >= steps) return acquire_order(&op);
  op.sleepers.push_back({&self(), steps});
  suspend(instruction);
  acquire_order(&op);
}

void Scheduler::judge_for(Thread& thread, const Access& access, const Clock& clock, const void* issued, bool engine) {
  const std::string verdict = judge(access, engine ? engine_index(thread) : clock_index(thread), clock);
  if (!verdict.empty()) fail(&thread, verdict, access.pc);
  if (access.kind != Access::Kind::kAtomic)
    thread.engine.access(issued, access.pc, access.address, access.bytes, access.kind == Access::Kind::kWrite);
}

// ---- Faults -------------------------------------------------------------------------------------------------------
void Scheduler::fail(Thread* thread, const std::string& verdict, const void* pc) {
  if (!faulted_) {
    error = thread ? "block " + text(thread->block->index) + ", thread " + text(thread->index) + where(pc) +
                         ": " + verdict
                   : verdict + where(pc);
    faulted_ = true;
  }
  release_order(this);
  if (on_main_) throw Failed{};
  Fiber::switch_to(self().fiber, main_, false);
  std::abort();  // never resumed
}

void fault(const std::string& verdict, const void* pc) {
  OwnBusiness quiet;
  scheduler().fail(&scheduler().self(), verdict, pc);
}

std::string Scheduler::deadlock_report() {
  std::string report;
  for (const Block& block : blocks) {
    if (block.alive == 0) continue;
    report += (report.empty() ? "deadlock in block " : "\n  and in block ") + text(block.index) +
              (report.empty() ? ": no thread can go on." : ":");
    // Threads of a warp that wait for the same thing share a line, and so do whole warps.
    struct Line { std::size_t warp, first_lane, last_lane; std::string words; };
    std::vector<Line> lines;
    for (std::size_t first = 0; first < block.threads.size(); ++first) {
      const Thread& thread = *block.threads[first];
      if (thread.exited) continue;
      std::size_t last = first;
      while (last + 1 < block.threads.size() && block.threads[last + 1]->warp() == thread.warp()) {
        const Thread& next = *block.threads[last + 1];
        if (next.exited || std::strcmp(next.waits_at, thread.waits_at) != 0 || next.waits_for != thread.waits_for ||
            next.pc != thread.pc)
          break;
        ++last;
      }
      std::string words = std::string(": wait at ") + thread.waits_at;
      if (thread.wait_details) words += " " + thread.wait_details(thread);
      if (const std::string line = thread.pc ? source_line(thread.pc) : ""; !line.empty()) words += ", " + line;
      lines.push_back({thread.warp(), thread.lane(), last % kWarpSize, std::move(words)});
      first = last;
    }
    const auto whole = [](const Line& line) { return line.first_lane == 0 && line.last_lane == kWarpSize - 1; };
    for (std::size_t i = 0; i < lines.size();) {
      std::size_t next = i + 1;
      while (next < lines.size() && whole(lines[i]) && whole(lines[next]) &&
             lines[next].words == lines[i].words)
        ++next;
      report +=
          next == i + 1
              ? "\n  warp " + std::to_string(lines[i].warp) + ", lanes " +
                    std::to_string(lines[i].first_lane) + "-" + std::to_string(lines[i].last_lane)
              : "\n  warps " + std::to_string(lines[i].warp) + "-" + std::to_string(lines[next - 1].warp);
      report += lines[i].words;
      i = next;
    }
  }
  return report;
}

// ---- The interface of emulator.hpp -----------------------------------------------------------------------------------
void set_schedule(const Schedule& schedule) { scheduler().schedule = schedule; }
cudaError_t run_grid(dim3 grid, dim3 block, unsigned cluster, std::size_t shared_bytes,
                     const std::function<void()>& kernel) {
  return scheduler().run(grid, block, cluster, shared_bytes, kernel);
}
const std::string& last_error() { return scheduler().error; }
std::string take_last_error() { return std::exchange(scheduler().error, {}); }
void* shared_memory() { return scheduler().self().block->shared; }
void preemption_point() {
  OwnBusiness quiet;
  scheduler().preempt(__builtin_return_address(0));
}

}  // namespace dsa::emulator
