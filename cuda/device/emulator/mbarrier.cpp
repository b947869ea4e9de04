/// mbarrier objects (PTX: "Asynchronous warpgroup..., mbarrier"). The state is kept beside shared memory; the 8 bytes in shared
/// memory hold a picture of it, for debuggers and to see when somebody writes over a barrier.
#include <algorithm>

#include "scheduler.hpp"
#include "source.hpp"

namespace dsa::emulator {

namespace {

constexpr unsigned kMaxCount = (1u << 20) - 1;   // of arrivals and of bytes (PTX: mbarrier.init, expect_tx)

/// What the 8 bytes hold: phase parity, arrivals missing, bytes outstanding. The hardware's own encoding is opaque.
uint64_t picture(const Mbarrier& b) {
  return (b.phase & 1) << 63 | uint64_t(b.pending) << 40 | (uint64_t(b.tx) & 0xffffffffffu);
}

std::string state(const Mbarrier& b) {
  // cp.async.mbarrier.arrive without .noinc asks for arrivals beyond the count.
  const int64_t wanted = std::max<int64_t>(b.count, b.pending);
  return "phase " + std::to_string(b.phase) + " has " + std::to_string(wanted - b.pending) + " of " +
         std::to_string(wanted) + " arrivals and " + std::to_string(b.tx) + " bytes outstanding";
}

/// The phase is complete when nothing is missing.
void turn_if_complete(Mbarrier& b) {
  if (b.pending != 0 || b.tx != 0) return;
  for (const Mbarrier::Repeat& repeat : b.repeats) {
    if (repeat.phase + 1 != b.phase) continue;
    scheduler().fail(repeat.thread,
                     "wrong phase: waited at " + mbarrier_name(b) + " for parity " + std::to_string(repeat.phase & 1) +
                         ", which is phase " + std::to_string(repeat.phase) +
                         " and which this thread had seen complete before; phase " + std::to_string(b.phase) +
                         " completes only now, so the wait kept nothing apart",
                     repeat.pc);
  }
  b.repeats.clear();
  b.turned = b.clock;
  ++b.phase;
  b.pending = b.count;
  for (Thread* thread : b.sleepers) scheduler().wake(*thread);
  b.sleepers.clear();
}

std::string wait_details(const Thread& thread) {
  const auto& b = *static_cast<const Mbarrier*>(thread.waits_for);
  const auto seen = thread.phases_seen.find(&b);
  const uint64_t next = seen == thread.phases_seen.end() ? 0 : seen->second;
  return mbarrier_name(b) + " for parity " + std::to_string(thread.wait_argument) + "; " + state(b) +
         (b.phase > next ? " (wrong phase? this thread never waited for phase " + std::to_string(next) + ")" : "");
}

}  // namespace

void mbarrier_redraw(Mbarrier& b) { *b.address = picture(b); }

/// The expression that its mbarrier_init was called with, such as `s.full[1]`, else its offset.
std::string mbarrier_name(const Mbarrier& b) {
  std::string name;
  const std::string line = source_text(b.pc);
  const std::size_t call = line.find("mbarrier_init(");
  if (call != std::string::npos) {
    const std::size_t begin = call + 14;
    name = line.substr(begin, line.find(',', begin) - begin);
    if (!name.empty() && name[0] == '&') name.erase(0, 1);
    // In a loop the index is a variable; which barrier it was is known from the order of the calls.
    const std::size_t bracket = name.rfind('[');
    if (bracket != std::string::npos && name.back() == ']' &&
        std::string("0123456789").find(name[bracket + 1]) == std::string::npos) {
      // By the line and not by the instruction: the loop may have been unrolled.
      const auto before = std::count_if(b.block->mbarriers.begin(), b.block->mbarriers.end(), [&](const auto& other) {
        return other.second.ordinal < b.ordinal && source_line(other.second.pc) == source_line(b.pc);
      });
      name = name.substr(0, bracket + 1) + std::to_string(before) + "]";
    }
  }
  if (name.empty()) name = "at offset " + std::to_string(reinterpret_cast<unsigned char*>(b.address) - b.block->shared);
  return "mbarrier " + name;
}

Mbarrier& find_mbarrier(uint64_t* address, const char* instruction, const void* pc) {
  Scheduler& s = scheduler();
  Block* block = s.block_of(address);
  const std::string what = instruction;
  if (!block) s.fail(&s.self(), what + ": the mbarrier is not in shared memory", pc);
  if (block->cluster != s.self().block->cluster)
    s.fail(&s.self(), what + ": the mbarrier belongs to another cluster", pc);
  if (block->alive == 0)
    s.fail(
        &s.self(),
        what + ": the block of rank " + std::to_string(block->rank) + " has exited, with its shared memory",
        pc);
  const auto found = block->mbarriers.find(address);
  if (found == block->mbarriers.end()) {
    s.fail(&s.self(), what + " of a mbarrier that has not been initialised, at offset " +
               std::to_string(reinterpret_cast<unsigned char*>(address) - block->shared), pc);
  }
  Mbarrier& barrier = found->second;
  if (*address != picture(barrier)) s.fail(&s.self(), what + ": somebody wrote over " + mbarrier_name(barrier), pc);
  return barrier;
}

void mbarrier_arrive_for(Mbarrier& b, unsigned count, const Clock& clock, Thread& thread, const void* pc) {
  if (b.pending < int64_t(count)) {
    scheduler().fail(&thread, "too many arrivals at " + mbarrier_name(b) + ": " + state(b) + ", and " +
                                  std::to_string(count) + " more came", pc);
  }
  b.clock.join(clock);
  b.pending -= count;
  turn_if_complete(b);
  *b.address = picture(b);
}

void mbarrier_complete_tx(Mbarrier& b, int64_t bytes, const Clock& done) {
  b.clock.join(done);
  b.tx -= bytes;
  turn_if_complete(b);
  *b.address = picture(b);
}

void check_mbarriers_at_exit(Block& block) {
  for (auto& [address, b] : block.mbarriers) {
    if (b.tx == 0 && b.pending == int64_t(b.count)) continue;
    scheduler().fail(block.threads[0],
                     (b.tx ? "tx-count mismatch" : "arrivals left over") +
                         std::string(": the block exits while ") + mbarrier_name(b) + ", " + state(b),
                     b.pc);
  }
}

void mbarrier_init(uint64_t* address, unsigned arrivals) {
  OwnBusiness quiet;
  const void* pc = __builtin_return_address(0);
  Scheduler& s = scheduler();
  s.preempt(pc);
  Block& block = *s.self().block;
  if (s.block_of(address) != &block) s.fail(&s.self(), "mbarrier.init: not in the block's own shared memory", pc);
  if (reinterpret_cast<uintptr_t>(address) % 8) s.fail(&s.self(), "mbarrier.init: address not a multiple of 8", pc);
  if (arrivals == 0 || arrivals > kMaxCount)
    s.fail(&s.self(), "mbarrier.init with a count of " + std::to_string(arrivals) + ": must be from 1 to 2^20 - 1", pc);
  if (block.mbarriers.contains(address))
    s.fail(&s.self(), "mbarrier.init of a mbarrier that is initialised already", pc);
  Mbarrier& b = block.mbarriers[address];
  b.address = address;
  b.block = &block;
  b.count = arrivals;
  b.pending = arrivals;
  b.pc = pc;
  b.ordinal = block.mbarriers.size() - 1;
  *address = picture(b);
}

void mbarrier_arrive(uint64_t* address, unsigned count) {
  OwnBusiness quiet;
  const void* pc = __builtin_return_address(0);
  Scheduler& s = scheduler();
  s.preempt(pc);
  Mbarrier& b = find_mbarrier(address, "mbarrier.arrive", pc);
  Clock& clock = s.clock_of(s.self());
  const Clock released = clock;
  ++clock.seen[s.clock_index(s.self())];
  release_order(&b);
  mbarrier_arrive_for(b, count, released, s.self(), pc);
}

void mbarrier_expect_tx(uint64_t* address, unsigned bytes) {
  OwnBusiness quiet;
  const void* pc = __builtin_return_address(0);
  Scheduler& s = scheduler();
  s.preempt(pc);
  Mbarrier& b = find_mbarrier(address, "mbarrier.expect_tx", pc);
  if (bytes > kMaxCount)
    s.fail(&s.self(), "mbarrier.expect_tx of " + std::to_string(bytes) + " bytes: at most 2^20 - 1", pc);
  b.tx += bytes;
  *b.address = picture(b);
}

bool mbarrier_try_wait_parity(uint64_t* address, unsigned parity) {
  OwnBusiness quiet;
  const void* pc = __builtin_return_address(0);
  Scheduler& s = scheduler();
  s.preempt(pc);
  Thread& thread = s.self();
  Mbarrier& b = find_mbarrier(address, "mbarrier.try_wait", pc);
  if (parity > 1) s.fail(&thread, "mbarrier.try_wait: parity " + std::to_string(parity) + " is neither 0 nor 1", pc);
  uint64_t& seen = thread.phases_seen[&b];
  const WaitSpan span(
      thread, [](const void* object) { return mbarrier_name(*static_cast<const Mbarrier*>(object)); }, &b);
  if ((b.phase & 1) == parity) {
    // Not complete: it waits for the current phase. If that has the parity of a phase this thread has yet to see, the
    // barrier is two ahead, and the thread would sleep through what it waits for.
    if (b.phase >= seen + 2 && (seen & 1) == parity) {
      s.fail(&thread,
             "overrun: waits at " + mbarrier_name(b) + " for parity " + std::to_string(parity) + ", phase " +
                 std::to_string(seen) + ", but the barrier is in phase " + std::to_string(b.phase) +
                 " already",
             pc);
    }
    b.sleepers.push_back(&thread);
    s.suspend("mbarrier.try_wait", &b, parity, wait_details);
    if ((b.phase & 1) == parity) return false;   // complete, and one more by now; the loop around try_wait asks again
  } else if (b.phase > 0 && b.phase == seen) {
    b.repeats.push_back({&thread, b.phase - 1, pc});
  }
  seen = b.phase;
  acquire_order(&b);
  s.acquire(b.turned);
  return true;
}

bool mbarrier_test_wait_parity(uint64_t* address, unsigned parity) {
  OwnBusiness quiet;
  const void* pc = __builtin_return_address(0);
  Scheduler& s = scheduler();
  s.preempt(pc);
  Mbarrier& b = find_mbarrier(address, "mbarrier.test_wait", pc);
  if (parity > 1) s.fail(&s.self(), "mbarrier.test_wait: parity " + std::to_string(parity) + " is neither 0 nor 1", pc);
  if ((b.phase & 1) == parity) return false;
  // Not noted as seen: to ask twice, or to ask and then wait, is no mistake.
  acquire_order(&b);
  s.acquire(b.turned);
  return true;
}

}  // namespace dsa::emulator
