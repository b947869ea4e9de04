/// Threads that meet: warp collectives, __syncthreads and named barriers, cluster barriers, setmaxnreg.
#include <algorithm>
#include <cstring>

#include "scheduler.hpp"

namespace dsa::emulator {

namespace {

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
    case WarpOp::kElect: return "elect.sync";
    case WarpOp::kLdmatrix: return "ldmatrix";
    case WarpOp::kLdmatrixTransposed: return "ldmatrix.trans";
    case WarpOp::kStmatrix: return "stmatrix";
    case WarpOp::kStmatrixTransposed: return "stmatrix.trans";
    case WarpOp::kSetmaxnregInc: return "setmaxnreg.inc";
    case WarpOp::kSetmaxnregDec: return "setmaxnreg.dec";
  }
  return "?";
}

Thread& lane_of(Block& block, std::size_t warp, std::size_t lane) { return *block.threads[warp * kWarpSize + lane]; }

// ---- Warp collectives -------------------------------------------------------------------------------------------
void shuffle_or_vote(Block& block, std::size_t warp, const Rendezvous& m) {
  const auto& lanes = m.lanes;
  uint64_t everyone = 0;
  if (m.op == WarpOp::kReduceMin) everyone = ~uint64_t(0);
  for (std::size_t lane = 0; lane < kWarpSize; ++lane) {
    if (!(m.arrived >> lane & 1)) continue;
    const uint64_t v = lanes[lane].value;
    if (m.op == WarpOp::kBallot) everyone |= (v & 1) << lane;
    if (m.op == WarpOp::kReduceAdd) everyone = uint32_t(everyone + v);
    if (m.op == WarpOp::kReduceMax) everyone = std::max(everyone, v);
    if (m.op == WarpOp::kReduceMin) everyone = std::min(everyone, v);
  }
  // Which lane is elected is not specified, but the same for a mask every time (PTX: elect.sync).
  std::size_t elected =
      scheduler().schedule.kind == Schedule::Kind::kRoundRobin ? 0 : scheduler().schedule.seed % kWarpSize;
  while (!(m.arrived >> elected & 1)) elected = (elected + 1) % kWarpSize;

  for (std::size_t l = 0; l < kWarpSize; ++l) {
    if (!(m.arrived >> l & 1)) continue;
    // Shuffles work inside segments of `width` lanes; a source outside the segment means "keep your own value"
    // (CUDA C++ Programming Guide, warp shuffle functions).
    const int lane = int(l), width = lanes[l].width, segment = lane / width * width;
    int source = lane;
    uint64_t result = everyone;
    switch (m.op) {
      case WarpOp::kShuffle: source = segment + (lanes[l].argument & (width - 1)); break;
      case WarpOp::kShuffleXor: source = lane ^ lanes[l].argument; break;
      case WarpOp::kShuffleUp: source = lane - lanes[l].argument; break;
      case WarpOp::kShuffleDown: source = lane + lanes[l].argument; break;
      case WarpOp::kElect: result = l == elected; break;
      case WarpOp::kMatchAny:
        result = 0;
        for (std::size_t other = 0; other < kWarpSize; ++other)
          if ((m.arrived >> other & 1) && lanes[other].value == lanes[l].value) result |= uint64_t(1) << other;
        break;
      default: break;
    }
    if (m.op == WarpOp::kShuffle || m.op == WarpOp::kShuffleXor || m.op == WarpOp::kShuffleUp ||
        m.op == WarpOp::kShuffleDown) {
      const bool outside = m.op == WarpOp::kShuffleXor ? source >= segment + width
                                                       : source < segment || source >= segment + width;
      if (outside) source = lane;
      if (!(m.arrived >> source & 1)) {
        broken(std::string(op_name(m.op)) + ": lane " + std::to_string(lane) + " reads lane " +
               std::to_string(source) + ", which takes no part");
      }
      result = lanes[std::size_t(source)].value;
    }
    lane_of(block, warp, l).result = result;
  }
}

/// PTX: ldmatrix, stmatrix. Lane l gives the address of row l % 8 of matrix l / 8. Register i of lane l holds, of matrix
/// i, the elements (l / 4, 2 (l % 4)) and the one beside it; transposed, (2 (l % 4), l / 4) and the one below it.
void move_matrices(Block& block, std::size_t warp, const Rendezvous& m) {
  const bool load = m.op == WarpOp::kLdmatrix || m.op == WarpOp::kLdmatrixTransposed;
  const bool transposed = m.op == WarpOp::kLdmatrixTransposed || m.op == WarpOp::kStmatrixTransposed;
  if (m.arrived != ~0u) broken(std::string(op_name(m.op)) + " needs all 32 lanes of the warp");
  const int count = m.lanes[0].argument;
  Scheduler& s = scheduler();
  unsigned char* rows[32] = {};
  for (std::size_t l = 0; l < std::size_t(8 * count); ++l) {
    auto* row = static_cast<unsigned char*>(const_cast<void*>(m.lanes[l].address));
    if (reinterpret_cast<uintptr_t>(row) % 16)
      broken(std::string(op_name(m.op)) + ": row address not a multiple of 16");
    if (s.block_of(row) != &block)
      broken(std::string(op_name(m.op)) + ": row address outside of the block's shared memory");
    Thread& thread = lane_of(block, warp, l);
    using Kind = Access::Kind;
    s.judge_for(thread, {row, 16, load ? Kind::kRead : Kind::kWrite, Access::Proxy::kGeneric, thread.pc, op_name(m.op)},
                s.clock_of(thread), &thread);
    rows[l] = row;
    thread.engine.release(&thread.engine);
  }
  for (std::size_t l = 0; l < kWarpSize; ++l) {
    for (int i = 0; i < count; ++i) {
      for (std::size_t half = 0; half < 2; ++half) {
        const std::size_t r = transposed ? 2 * (l % 4) + half : l / 4, c = transposed ? l / 4 : 2 * (l % 4) + half;
        unsigned char* element = rows[std::size_t(8 * i) + r] + 2 * c;
        unsigned char* place = reinterpret_cast<unsigned char*>(&m.lanes[l].registers[i]) + 2 * half;
        if (load) std::memcpy(place, element, 2);
        else std::memcpy(element, place, 2);
      }
    }
  }
}

std::string register_details(const Thread& thread) {
  const Warp& warp = thread.block->warps[thread.warp()];
  return std::to_string(warp.registers_wanted) + ", has " + std::to_string(warp.registers) + " and needs " +
         std::to_string((warp.registers_wanted - warp.registers) * kWarpSize) +
         " more registers; the block's pool has " + std::to_string(thread.block->registers_free);
}

/// Gives a warp the registers it waits for, if the pool has them.
bool grant_registers(Block& block, Warp& warp) {
  const std::size_t needed = (warp.registers_wanted - warp.registers) * kWarpSize;
  if (needed > block.registers_free) return false;
  block.registers_free -= needed;
  warp.registers = warp.registers_wanted;
  warp.registers_wanted = 0;
  return true;
}

/// True when the warp may go on.
bool set_registers(Block& block, std::size_t warp_index, const Rendezvous& m) {
  Warp& warp = block.warps[warp_index];
  const auto wanted = unsigned(m.lanes[0].value);
  if (m.arrived != ~0u) broken(std::string(op_name(m.op)) + " needs all 32 lanes of the warp");
  const std::string what = std::string(op_name(m.op)) + " " + std::to_string(wanted);
  if (wanted < 24 || wanted > 256 || wanted % 8) broken(what + ": must be a multiple of 8 from 24 to 256");
  if (m.op == WarpOp::kSetmaxnregDec) {
    if (wanted > warp.registers) broken(what + ": the warp has only " + std::to_string(warp.registers));
    block.registers_free += (warp.registers - wanted) * kWarpSize;
    warp.registers = wanted;
    for (std::size_t w = 0; w < block.warps.size(); ++w) {
      if (block.warps[w].registers_wanted == 0 || !grant_registers(block, block.warps[w])) continue;
      for (std::size_t l = 0; l < kWarpSize; ++l) scheduler().wake(lane_of(block, w, l));
    }
    return true;
  }
  if (wanted < warp.registers) broken(what + ": the warp has " + std::to_string(warp.registers) + " already");
  warp.registers_wanted = wanted;
  return grant_registers(block, warp);
}

/// Computes every lane's result and wakes the lanes that wait.
void complete(Block& block, std::size_t warp, const Rendezvous& m) {
  bool go_on = true;
  switch (m.op) {
    case WarpOp::kLdmatrix: case WarpOp::kLdmatrixTransposed:
    case WarpOp::kStmatrix: case WarpOp::kStmatrixTransposed: move_matrices(block, warp, m); break;
    case WarpOp::kSetmaxnregInc: case WarpOp::kSetmaxnregDec: go_on = set_registers(block, warp, m); break;
    default: shuffle_or_vote(block, warp, m);
  }
  if (!go_on) return;
  uint64_t calls = 0;   // lanes that have met are level again, whoever had more to do before
  for (std::size_t l = 0; l < kWarpSize; ++l)
    if (m.arrived >> l & 1) calls = std::max(calls, lane_of(block, warp, l).calls);
  for (std::size_t l = 0; l < kWarpSize; ++l)
    if (m.arrived >> l & 1) lane_of(block, warp, l).calls = calls;
  for (std::size_t l = 0; l < kWarpSize; ++l) {
    if (!(m.arrived >> l & 1)) continue;
    if (Thread& thread = lane_of(block, warp, l); thread.waiting) scheduler().wake(thread);
  }
}

uint64_t meet(WarpOp op, unsigned mask, const LaneArguments& arguments, const void* pc) {
  Scheduler& s = scheduler();
  s.preempt(pc);
  Thread& thread = s.self();
  Block& block = *thread.block;
  Warp& warp = block.warps[thread.warp()];
  const unsigned lane = thread.lane();
  if (!(mask >> lane & 1)) {
    broken(std::string(op_name(op)) + ": the calling lane " + std::to_string(lane) + " is not in its mask");
  }
  auto meeting = std::find_if(warp.meetings.begin(), warp.meetings.end(),
                              [&](const Rendezvous& m) { return m.mask == mask; });
  if (meeting == warp.meetings.end()) {
    meeting = warp.meetings.insert(warp.meetings.end(), Rendezvous{});
    meeting->mask = mask;
    meeting->op = op;
  } else if (meeting->op != op) {
    broken(std::string(op_name(op)) + " meets " + op_name(meeting->op) +
           " in the same warp: lanes of one mask have diverged");
  }
  meeting->arrived |= 1u << lane;
  meeting->lanes[lane] = arguments;
  release_order(&warp);
  release_order(&thread);   // for the engine that moves the rows of ldmatrix and stmatrix
  if (meeting->arrived == (mask & warp.alive)) {
    const Rendezvous met = *meeting;
    warp.meetings.erase(meeting);
    complete(block, thread.warp(), met);
    if (warp.registers_wanted) s.suspend(op_name(op), nullptr, 0, register_details);
  } else {
    s.suspend(op_name(op), nullptr, 0, op == WarpOp::kSetmaxnregInc ? register_details : nullptr);
  }
  acquire_order(&warp);
  acquire_order(&thread.engine);
  return thread.result;
}

// ---- Barriers of the block ------------------------------------------------------------------------------------------
std::string barrier_details(const Thread& thread) {
  const Barrier& barrier = thread.block->barriers[thread.wait_argument];
  return std::to_string(thread.wait_argument) + ": " + std::to_string(barrier.arrived) + " of " +
         std::to_string(barrier.expected) + " threads have come";
}

void open_if_complete(Block& block, std::size_t id) {
  Barrier& barrier = block.barriers[id];
  // Threads that have exited count as arrived at __syncthreads, not at a named barrier.
  if (barrier.arrived == 0 || barrier.arrived < (id == 0 ? block.alive : barrier.expected)) return;
  for (Thread* thread : barrier.sleepers) {
    thread->result = uint64_t(barrier.count);
    scheduler().wake(*thread);
  }
  scheduler().self().result = uint64_t(barrier.count);
  Clock clock = std::move(barrier.clock);
  barrier = {};
  barrier.opened = clock;
  barrier.clock = std::move(clock);
}

std::string name_of_barrier(const void* object) {
  const std::size_t id = std::size_t(static_cast<const Barrier*>(object) - scheduler().self().block->barriers.data());
  return id == 0 ? "__syncthreads" : "barrier " + std::to_string(id);
}

int barrier(unsigned id, unsigned threads, bool wait, bool predicate, const char* name, const void* pc) {
  Scheduler& s = scheduler();
  s.preempt(pc);
  Thread& thread = s.self();
  Block& block = *thread.block;
  const auto label = [&] { return std::string(name) + " " + std::to_string(id); };
  if (id > 15) broken(label() + ": a block has barriers 0 to 15");
  if (threads == 0 || threads % kWarpSize || threads > block.warps.size() * kWarpSize) {
    broken(label() + " for " + std::to_string(threads) +
           " threads: must be a multiple of 32, and no more than the block has");
  }
  Barrier& barrier = block.barriers[id];
  if (barrier.expected == 0) {
    barrier.expected = threads;
    barrier.came.assign(block.threads.size(), false);
  } else if (barrier.expected != threads) {
    broken(label() + " for " + std::to_string(threads) + " threads, while others are there for " +
           std::to_string(barrier.expected));
  }
  if (barrier.came[thread.number])
    broken(label() + ": this thread came before, and the barrier has not completed since");
  if (id != 0 && barrier.arrived == barrier.expected) broken(label() + ": too many arrivals");
  barrier.came[thread.number] = true;
  ++barrier.arrived;
  barrier.count += predicate;
  release_order(&barrier);
  s.release(barrier.clock);
  const bool complete = barrier.arrived >= (id == 0 ? block.alive : barrier.expected);
  if (complete) open_if_complete(block, id);
  if (wait) {
    const WaitSpan span(thread, name_of_barrier, &barrier);
    if (!complete) {
      barrier.sleepers.push_back(&thread);
      s.suspend(name, nullptr, id, id == 0 ? nullptr : barrier_details);
    }
    acquire_order(&barrier);
    s.acquire(barrier.opened);
  }
  return int(thread.result);
}

/// Threads that exit without arriving count as arrived.
void open_cluster_if_complete(Cluster& cluster) {
  if (cluster.arrived == 0 || cluster.arrived - cluster.arrived_and_left < cluster.alive) return;
  ++cluster.phase;
  cluster.opened = cluster.clock;
  cluster.arrived = cluster.arrived_and_left = 0;
  for (Thread* thread : cluster.sleepers) scheduler().wake(*thread);
  cluster.sleepers.clear();
}

}  // namespace

void exit_from_collectives(Thread& thread) {
  Block& block = *thread.block;
  Warp& warp = block.warps[thread.warp()];
  for (std::size_t i = 0; i < warp.meetings.size();) {
    if (warp.meetings[i].arrived == (warp.meetings[i].mask & warp.alive)) {
      const Rendezvous met = warp.meetings[i];
      warp.meetings.erase(warp.meetings.begin() + std::ptrdiff_t(i));
      complete(block, thread.warp(), met);
    } else {
      ++i;
    }
  }
  open_if_complete(block, 0);
  if (thread.cluster_arrivals > block.cluster->phase) ++block.cluster->arrived_and_left;
  open_cluster_if_complete(*block.cluster);
}

static int sync_threads(bool predicate, const void* pc) {
  const auto warps = unsigned(scheduler().self().block->warps.size());
  return barrier(0, warps * unsigned(kWarpSize), true, predicate, "__syncthreads", pc);
}

void block_barrier() {
  OwnBusiness quiet;
  sync_threads(false, __builtin_return_address(0));
}

int block_barrier_count(bool predicate) {
  OwnBusiness quiet;
  return sync_threads(predicate, __builtin_return_address(0));
}

static int named_barrier(unsigned id, unsigned threads, bool wait, bool predicate, const char* name, const void* pc) {
  if (id == 0) broken("barrier 0 is __syncthreads; named barriers are 1 to 15");
  return barrier(id, threads, wait, predicate, name, pc);
}

void named_barrier_sync(unsigned id, unsigned threads) {
  OwnBusiness quiet;
  named_barrier(id, threads, true, false, "bar.sync", __builtin_return_address(0));
}

int named_barrier_count(unsigned id, unsigned threads, bool predicate) {
  OwnBusiness quiet;
  return named_barrier(id, threads, true, predicate, "bar.red", __builtin_return_address(0));
}

void named_barrier_arrive(unsigned id, unsigned threads) {
  OwnBusiness quiet;
  named_barrier(id, threads, false, false, "bar.arrive", __builtin_return_address(0));
}

uint64_t warp_collective(WarpOp op, unsigned mask, uint64_t value, int argument, int width) {
  OwnBusiness quiet;
  return meet(op, mask, {value, argument, width}, __builtin_return_address(0));
}

bool elect_sync() {
  OwnBusiness quiet;
  return meet(WarpOp::kElect, ~0u, {}, __builtin_return_address(0)) != 0;
}

void ldmatrix(uint32_t* registers, int count, bool transposed, const void* row) {
  OwnBusiness quiet;
  meet(transposed ? WarpOp::kLdmatrixTransposed : WarpOp::kLdmatrix, ~0u, {0, count, 32, row, registers},
       __builtin_return_address(0));
}

void stmatrix(void* row, const uint32_t* registers, int count, bool transposed) {
  OwnBusiness quiet;
  meet(transposed ? WarpOp::kStmatrixTransposed : WarpOp::kStmatrix, ~0u,
       {0, count, 32, row, const_cast<uint32_t*>(registers)}, __builtin_return_address(0));
}

void setmaxnreg_inc(unsigned registers) {
  OwnBusiness quiet;
  aligned_step("setmaxnreg.inc", __builtin_return_address(0), registers);
  meet(WarpOp::kSetmaxnregInc, ~0u, {registers}, __builtin_return_address(0));
}

void setmaxnreg_dec(unsigned registers) {
  OwnBusiness quiet;
  aligned_step("setmaxnreg.dec", __builtin_return_address(0), registers);
  meet(WarpOp::kSetmaxnregDec, ~0u, {registers}, __builtin_return_address(0));
}

unsigned cluster_rank() { return scheduler().self().block->rank; }
unsigned cluster_blocks() { return unsigned(scheduler().self().block->cluster->blocks.size()); }

void cluster_arrive() {
  OwnBusiness quiet;
  Scheduler& s = scheduler();
  s.preempt(__builtin_return_address(0));
  Thread& thread = s.self();
  Cluster& cluster = *thread.block->cluster;
  if (thread.cluster_arrivals > cluster.phase)
    broken("barrier.cluster.arrive: this thread has not waited since its last arrival");
  thread.cluster_arrivals = cluster.phase + 1;
  ++cluster.arrived;
  release_order(&cluster);
  s.release(cluster.clock);
  open_cluster_if_complete(cluster);
}

void cluster_wait() {
  OwnBusiness quiet;
  Scheduler& s = scheduler();
  s.preempt(__builtin_return_address(0));
  Thread& thread = s.self();
  Cluster& cluster = *thread.block->cluster;
  if (thread.cluster_arrivals == 0) broken("barrier.cluster.wait without barrier.cluster.arrive before it");
  const WaitSpan span(thread, [](const void*) { return std::string("barrier.cluster"); }, nullptr);
  if (cluster.phase < thread.cluster_arrivals) {
    cluster.sleepers.push_back(&thread);
    s.suspend("barrier.cluster.wait");
  }
  acquire_order(&cluster);
  s.acquire(cluster.opened);
}

}  // namespace dsa::emulator
