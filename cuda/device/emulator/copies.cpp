/// Copies that happen later: cp.async, bulk copies, tensor copies, st.async; and the addresses they work on.
#include <algorithm>
#include <cstring>

#include "matrix.hpp"
#include "scheduler.hpp"

namespace dsa::emulator {

namespace {

using Kind = Access::Kind;
using Proxy = Access::Proxy;

bool aligned(const void* address, std::size_t to) { return reinterpret_cast<uintptr_t>(address) % to == 0; }

/// The block that `address` is in the shared memory of; it must be a living one of the running thread's cluster.
Block& shared_block(const void* address, const char* instruction) {
  Scheduler& s = scheduler();
  Block* block = s.block_of(address);
  if (!block || block->cluster != s.self().block->cluster)
    broken(std::string(instruction) + ": address outside of shared memory");
  if (block->alive == 0)
    broken(std::string(instruction) + ": the block of rank " + std::to_string(block->rank) +
           " has exited, with its shared memory");
  return *block;
}

void own_shared(const void* address, const char* instruction) {
  if (&shared_block(address, instruction) != scheduler().self().block)
    broken(std::string(instruction) + ": address in another block's shared memory");
}

/// The clock that a copy's write is judged and released with: the issuing warp's, and the copy's own number.
Clock clock_of_copy(Thread& thread, uint32_t tick) {
  Scheduler& s = scheduler();
  Clock clock = s.clock_of(thread);
  clock.seen[s.engine_index(thread)] = tick;
  return clock;
}

// ---- cp.async -----------------------------------------------------------------------------------------------------
void land(Thread& thread, const Clock& clock, const CopyBatch::Copy& copy) {
  Scheduler& s = scheduler();
  if (copy.source_bytes > 0)
    s.judge_for(thread, {copy.from, copy.source_bytes, Kind::kRead, Proxy::kGeneric, copy.pc, "cp.async"},
                clock, &thread);
  s.judge_for(thread, {copy.to, copy.bytes, Kind::kWrite, Proxy::kGeneric, copy.pc, "cp.async"}, clock, &thread, true);
  if (copy.source_bytes > 0) std::memcpy(copy.to, copy.from, copy.source_bytes);
  std::memset(copy.to + copy.source_bytes, 0, copy.bytes - copy.source_bytes);
}

/// A thread's batches land in order; this one and all before it.
void land_through(Thread& thread, const AsyncOp* last) {
  while (!thread.copies.empty()) {
    CopyBatch batch = std::move(thread.copies.front());
    thread.copies.pop_front();
    for (const CopyBatch::Copy& copy : batch.copies) land(thread, batch.clock, copy);
    batch.clock.time = batch.op->end;
    thread.engine.release(batch.op.get());
    thread.engine.release(&thread.copies);
    if (batch.arrival) thread.engine.release(batch.arrival);
    if (batch.arrival) mbarrier_arrive_for(*batch.arrival, 1, batch.clock, thread, batch.op->pc);
    scheduler().set_done(*batch.op, 1);
    if (batch.op.get() == last) return;
  }
}

/// The batch that the thread's next cp.async joins.
CopyBatch& open_batch(Thread& thread, const void* pc) {
  if (thread.copies_open) return thread.copies.back();
  CopyBatch& batch = thread.copies.emplace_back();
  batch.early = scheduler().choose_landing() == Scheduler::Landing::kEarly;
  batch.group = thread.copy_groups;
  batch.tick = scheduler().next_copy(thread);
  batch.clock = clock_of_copy(thread, batch.tick);
  batch.op = new_op(thread, pc, "cp.async");
  batch.op->steps.push_back([&thread, op = batch.op.get()] { land_through(thread, op); });
  thread.copies_open = true;
  return batch;
}

/// No more copies for the open batch; it is under way now.
void close_batch(Thread& thread, Mbarrier* arrival) {
  Scheduler& s = scheduler();
  CopyBatch& batch = open_batch(thread, thread.pc);
  batch.arrival = arrival;
  batch.clock = clock_of_copy(thread, batch.tick);
  thread.copy_ticks.emplace_back(batch.group, batch.tick);
  ++s.clock_of(thread).seen[s.clock_index(s.self())];
  thread.copies_open = false;
  batch.op->end = s.copy_end(thread, batch.clock.time, batch.bytes, "cp.async");
  const bool first = thread.copies.size() == 1;
  // Its copies may have been made already; the arrival still waits for earlier batches.
  const Scheduler::Landing landing = s.choose_landing();
  s.start_at(batch.op, landing == Scheduler::Landing::kEarly && !first ? Scheduler::Landing::kAnyTime : landing);
}

// ---- Bulk copies --------------------------------------------------------------------------------------------------
/// A load that completes `bytes` on a mbarrier of the destination's block.
/// @param move  makes the copy; gets the clock that its write is judged with
void start_load(const char* name, uint64_t* barrier, unsigned bytes, std::function<void(const Clock&)> move) {
  Scheduler& s = scheduler();
  Thread& thread = s.self();
  const uint32_t tick = s.next_copy(thread);
  Mbarrier& b = find_mbarrier(barrier, name, thread.pc);
  auto op = new_op(thread, thread.pc, name);
  op->end = s.copy_end(thread, s.clock_of(thread).time, bytes, name);
  release_order(&thread);
  // Only the copy itself is in the past of who waits for the barrier, not what the issuing thread did.
  Clock done;
  done.seen.resize(s.clocks.size());
  done.fenced.resize(s.clocks.size());
  done.seen[s.engine_index(thread)] = tick;
  done.time = op->end;
  op->steps.push_back([move = std::move(move), &b, bytes, &thread, clock = clock_of_copy(thread, tick), done] {
    move(clock);
    thread.engine.release(&b);
    mbarrier_complete_tx(b, bytes, done);
  });
  s.start(std::move(op));
}

/// A store in the thread's bulk group: reads its source in a first step, writes in a second.
void start_store(const char* name, unsigned bytes, std::function<void(std::vector<unsigned char>&)> read,
                 std::function<void(const std::vector<unsigned char>&)> write) {
  Scheduler& s = scheduler();
  Thread& thread = s.self();
  auto op = new_op(thread, thread.pc, name);
  op->end = s.copy_end(thread, s.clock_of(thread).time, bytes, name);
  auto data = std::make_shared<std::vector<unsigned char>>();
  release_order(&thread);
  op->steps.push_back(
      [read = std::move(read), data, &thread, op = op.get()] { read(*data), thread.engine.release(op); });
  op->steps.push_back([write = std::move(write), data, &thread, op = op.get()] {
    write(*data);
    thread.engine.release(op);
    thread.engine.release(&scheduler());   // for the host, which waits for the grid only
  });
  thread.bulk.push_back({thread.bulk_groups, op, false});
  s.start(std::move(op));
}

std::size_t swizzle_bytes(TensorMap::Swizzle mode) {
  return mode == TensorMap::Swizzle::kNone ? 16 : std::size_t(16) << int(mode);
}

/// Bytes from one row of the box to the next in shared memory. Rows that are shorter than the swizzle mode's are as far
/// apart as if they were not (tests/probe: tensor_load/short_rows).
std::size_t row_pitch(const TensorMap& map) {
  return map.swizzle == TensorMap::Swizzle::kNone ? std::size_t(map.box[0]) * std::size_t(map.element_bytes)
                                                  : swizzle_bytes(map.swizzle);
}

std::size_t box_rows(const TensorMap& map) {
  std::size_t rows = 1;
  for (int d = 1; d < map.rank; ++d) rows *= map.box[d];
  return rows;
}

/// Calls visit(shared_offset, element address or null when outside) for every element of the box.
template <class Visit> void visit_box(const TensorMap& map, const int* at, const Visit& visit) {
  const std::size_t row = row_pitch(map);
  for (std::size_t r = 0; r < box_rows(map); ++r) {
    std::size_t rest = r;
    bool inside = true;
    int64_t offset = 0;
    for (int d = 1; d < map.rank; ++d) {
      const int64_t x = at[d] + int64_t(rest % map.box[d]);
      rest /= map.box[d];
      inside = inside && x >= 0 && uint64_t(x) < map.size[d];
      offset += x * int64_t(map.stride[d]);
    }
    for (std::size_t c = 0; c < map.box[0]; ++c) {
      const int64_t x = at[0] + int64_t(c);
      const bool in = inside && x >= 0 && uint64_t(x) < map.size[0];
      visit(r * row + c * std::size_t(map.element_bytes),
            in ? static_cast<unsigned char*>(map.base) + offset + x * map.element_bytes : nullptr);
    }
  }
}

std::size_t box_bytes(const TensorMap& map) { return box_rows(map) * map.box[0] * std::size_t(map.element_bytes); }

/// Where the byte at `offset` of the un-swizzled box lies. The pattern is a function of the address, not of the offset.
unsigned char* swizzled(unsigned char* shared, std::size_t offset, TensorMap::Swizzle mode,
                        const unsigned char* window) {
  const auto address = uint32_t(shared + offset - window) + kSharedWindowStart;
  const uint32_t place = swizzled_address(address, uint32_t(swizzle_bytes(mode)));
  return shared + offset + std::ptrdiff_t(place) - std::ptrdiff_t(address);
}

/// What PTX demands of a tensor copy, and what an H200 does beyond (tensor_map.cuh). @return the coordinates
std::array<int, 5> check_tensor(const TensorMap& map, const int* coordinates, int dimensions,
                                const void* shared, bool store) {
  const std::string name = "cp.async.bulk.tensor: ";
  if (map.rank < 1 || map.rank > 5) broken(name + "not a tensor map");
  if (dimensions != map.rank)
    broken(name + std::to_string(dimensions) + " coordinates for a tensor map of rank " + std::to_string(map.rank));
  if (!aligned(shared, 128)) broken(name + "shared address not a multiple of 128");
  if (coordinates[0] * map.element_bytes % 16)
    broken(name + "x = " + std::to_string(coordinates[0]) + " is not a multiple of 16 bytes");
  for (int d = 0; d < dimensions && store; ++d)
    if (coordinates[d] < 0) broken(name + "a store to the negative coordinate " + std::to_string(coordinates[d]));
  if (store && map.size[0] * uint64_t(map.element_bytes) % 16)
    broken(name + "a store to a tensor whose contiguous dimension is not a multiple of 16 bytes writes past its rows");
  std::array<int, 5> at{};
  std::copy(coordinates, coordinates + dimensions, at.begin());
  return at;
}

}  // namespace

// ---- Addresses ------------------------------------------------------------------------------------------------------
uint32_t shared_address(const void* address) {
  OwnBusiness quiet;
  Scheduler& s = scheduler();
  s.self().pc = __builtin_return_address(0);
  const Block& block = *s.self().block;
  const auto offset = static_cast<const unsigned char*>(address) - block.shared;
  if (offset < 0 || std::size_t(offset) > s.shared_bytes)
    broken("an address outside of the block's shared memory is used as one inside");
  return uint32_t(offset) + kSharedWindowStart;
}

void* map_to_cluster(const void* address, unsigned rank) {
  OwnBusiness quiet;
  Scheduler& s = scheduler();
  s.self().pc = __builtin_return_address(0);
  const Block& block = *s.self().block;
  own_shared(address, "mapa");
  if (rank >= block.cluster->blocks.size())
    broken("mapa: rank " + std::to_string(rank) + " in a cluster of " +
           std::to_string(block.cluster->blocks.size()));
  return block.cluster->blocks[rank]->shared + (static_cast<const unsigned char*>(address) - block.shared);
}

// ---- cp.async -------------------------------------------------------------------------------------------------------
void cp_async(void* shared, const void* global, unsigned bytes, unsigned source_bytes) {
  OwnBusiness quiet;
  Scheduler& s = scheduler();
  s.preempt(__builtin_return_address(0));
  Thread& thread = s.self();
  if (bytes != 4 && bytes != 8 && bytes != 16)
    broken("cp.async of " + std::to_string(bytes) + " bytes: must be 4, 8 or 16");
  if (source_bytes > bytes) broken("cp.async: src-size " + std::to_string(source_bytes) + " is larger than cp-size");
  own_shared(shared, "cp.async");
  if (!aligned(shared, bytes) || !aligned(global, bytes))
    broken("cp.async: an address is not a multiple of " + std::to_string(bytes));
  CopyBatch& batch = open_batch(thread, thread.pc);
  release_order(&thread);
  const CopyBatch::Copy copy{static_cast<unsigned char*>(shared), static_cast<const unsigned char*>(global), bytes,
                             source_bytes, thread.pc};
  batch.bytes += source_bytes;
  if (batch.early) land(thread, batch.clock, copy);
  else batch.copies.push_back(copy);
}

void cp_async_commit_group() {
  OwnBusiness quiet;
  Scheduler& s = scheduler();
  s.preempt(__builtin_return_address(0));
  Thread& thread = s.self();
  if (thread.copies_open) close_batch(thread, nullptr);
  ++thread.copy_groups;
}

void cp_async_wait_group(unsigned pending) {
  OwnBusiness quiet;
  Scheduler& s = scheduler();
  s.preempt(__builtin_return_address(0));
  Thread& thread = s.self();
  std::shared_ptr<AsyncOp> last;
  for (const CopyBatch& batch : thread.copies)
    if (batch.group + pending < thread.copy_groups) last = batch.op;
  if (last) s.await(*last, 1, "cp.async.wait_group");
  acquire_order(&thread.copies);   // of those that had landed before, too
  uint32_t& waited = s.clock_of(thread).seen[s.engine_index(thread)];
  while (!thread.copy_ticks.empty() && thread.copy_ticks.front().first + pending < thread.copy_groups) {
    waited = std::max(waited, thread.copy_ticks.front().second);
    thread.copy_ticks.pop_front();
  }
}

void cp_async_mbarrier_arrive(uint64_t* barrier, bool noinc) {
  OwnBusiness quiet;
  Scheduler& s = scheduler();
  s.preempt(__builtin_return_address(0));
  Thread& thread = s.self();
  Mbarrier& b = find_mbarrier(barrier, "cp.async.mbarrier.arrive", thread.pc);
  // Without .noinc the pending count goes up now and down again on arrival: no part of the barrier's own count.
  if (!noinc) ++b.pending, mbarrier_redraw(b);
  close_batch(thread, &b);
}

// ---- Bulk -----------------------------------------------------------------------------------------------------------
void bulk_load(void* shared, const void* source, unsigned bytes, uint64_t* barrier) {
  OwnBusiness quiet;
  constexpr const char* kName = "cp.async.bulk";
  Scheduler& s = scheduler();
  s.preempt(__builtin_return_address(0));
  Thread& thread = s.self();
  Block& to = shared_block(shared, kName);
  if (bytes % 16 || !aligned(shared, 16) || !aligned(source, 16))
    broken("cp.async.bulk: addresses and size must be multiples of 16");
  const bool from_shared = s.block_of(source) != nullptr;
  if (!from_shared && &to != thread.block) broken("cp.async.bulk: from global memory to another block's shared memory");
  if (find_mbarrier(barrier, kName, thread.pc).block != &to)
    broken("cp.async.bulk: mbarrier and destination belong to different blocks");
  start_load(kName, barrier, bytes, [=, &thread, pc = thread.pc](const Clock& clock) {
    Scheduler& s = scheduler();
    s.judge_for(thread, {source, bytes, Kind::kRead, Proxy::kAsync, pc, kName}, clock, &thread);
    s.judge_for(thread, {shared, bytes, Kind::kWrite, Proxy::kAsync, pc, kName}, clock, &thread, true);
    std::memcpy(shared, source, bytes);
  });
}

void bulk_store(void* global, const void* shared, unsigned bytes, BulkStore op) {
  OwnBusiness quiet;
  Scheduler& s = scheduler();
  s.preempt(__builtin_return_address(0));
  Thread& thread = s.self();
  const char* name = op == BulkStore::kCopy ? "cp.async.bulk" : "cp.reduce.async.bulk";
  own_shared(shared, name);
  if (bytes % 16 || !aligned(shared, 16) || !aligned(global, 16))
    broken(std::string(name) + ": addresses and size must be multiples of 16");
  const Clock clock = s.clock_of(thread);
  const void* pc = thread.pc;
  start_store(name, bytes,
      [=, &thread](std::vector<unsigned char>& data) {
        scheduler().judge_for(thread, {shared, bytes, Kind::kRead, Proxy::kAsync, pc, name}, clock, &thread);
        const auto* from = static_cast<const unsigned char*>(shared);
        data.assign(from, from + bytes);
      },
      [=, &thread](const std::vector<unsigned char>& data) {
        const Kind kind = op == BulkStore::kCopy ? Kind::kWrite : Kind::kAtomic;
        scheduler().judge_for(thread, {global, bytes, kind, Proxy::kAsync, pc, name}, clock, &thread);
        if (op == BulkStore::kCopy) {
          std::memcpy(global, data.data(), bytes);
        } else {
          for (unsigned i = 0; i < bytes / 4; ++i) {
            float sum, addend;
            auto* place = static_cast<unsigned char*>(global) + 4 * i;
            std::memcpy(&sum, place, 4), std::memcpy(&addend, data.data() + 4 * i, 4);
            sum += addend;
            std::memcpy(place, &sum, 4);
          }
        }
      });
}

void bulk_commit_group() {
  OwnBusiness quiet;
  scheduler().preempt(__builtin_return_address(0));
  ++scheduler().self().bulk_groups;
}

void bulk_wait_group(unsigned pending, bool only_read) {
  OwnBusiness quiet;
  Scheduler& s = scheduler();
  s.preempt(__builtin_return_address(0));
  Thread& thread = s.self();
  for (auto& store : thread.bulk) {
    if (store.group + pending >= thread.bulk_groups) continue;
    s.await(*store.op, only_read ? 1 : 2, "cp.async.bulk.wait_group");
    store.waited_for = true;
  }
  std::erase_if(thread.bulk, [](const auto& store) { return store.waited_for && store.op->finished(); });
}

void tensor_load(void* shared, const TensorMap* map, const int* coordinates, int dimensions, uint64_t* barrier) {
  OwnBusiness quiet;
  constexpr const char* kName = "cp.async.bulk.tensor";
  Scheduler& s = scheduler();
  s.preempt(__builtin_return_address(0));
  Thread& thread = s.self();
  const std::array<int, 5> at = check_tensor(*map, coordinates, dimensions, shared, false);
  own_shared(shared, kName);
  if (find_mbarrier(barrier, kName, thread.pc).block != thread.block)
    broken("cp.async.bulk.tensor: mbarrier of another block");
  start_load(kName, barrier, unsigned(box_bytes(*map)), [=, &thread, pc = thread.pc, map = *map](const Clock& clock) {
    Scheduler& s = scheduler();
    const auto size = std::size_t(map.element_bytes);
    visit_box(map, at.data(), [&](std::size_t offset, const unsigned char* element) {
      unsigned char* place = swizzled(static_cast<unsigned char*>(shared), offset, map.swizzle, thread.block->shared);
      s.judge_for(thread, {place, size, Kind::kWrite, Proxy::kAsync, pc, kName}, clock, &thread, true);
      if (element) {
        s.judge_for(thread, {element, size, Kind::kRead, Proxy::kAsync, pc, kName}, clock, &thread);
        std::memcpy(place, element, size);
      } else {
        std::memset(place, 0, size);
      }
    });
  });
}

void tensor_store(const TensorMap* map, const int* coordinates, int dimensions, const void* shared) {
  OwnBusiness quiet;
  constexpr const char* kName = "cp.async.bulk.tensor";
  Scheduler& s = scheduler();
  s.preempt(__builtin_return_address(0));
  Thread& thread = s.self();
  const std::array<int, 5> at = check_tensor(*map, coordinates, dimensions, shared, true);
  own_shared(shared, kName);
  const Clock clock = s.clock_of(thread);
  const void* pc = thread.pc;
  start_store(kName, unsigned(box_bytes(*map)),
      [=, &thread, map = *map](std::vector<unsigned char>& data) {
        data.resize(box_rows(map) * row_pitch(map));
        auto* from = static_cast<unsigned char*>(const_cast<void*>(shared));
        const auto size = std::size_t(map.element_bytes);
        visit_box(map, at.data(), [&](std::size_t offset, const unsigned char*) {
          unsigned char* place = swizzled(from, offset, map.swizzle, thread.block->shared);
          scheduler().judge_for(thread, {place, size, Kind::kRead, Proxy::kAsync, pc, kName}, clock, &thread);
          std::memcpy(data.data() + offset, place, size);
        });
      },
      [=, &thread, map = *map](const std::vector<unsigned char>& data) {
        const auto size = std::size_t(map.element_bytes);
        visit_box(map, at.data(), [&](std::size_t offset, unsigned char* element) {
          if (!element) return;
          scheduler().judge_for(thread, {element, size, Kind::kWrite, Proxy::kAsync, pc, kName}, clock, &thread);
          std::memcpy(element, data.data() + offset, size);
        });
      });
}

void st_async(void* shared, const void* value, unsigned bytes, uint64_t* barrier) {
  OwnBusiness quiet;
  Scheduler& s = scheduler();
  s.preempt(__builtin_return_address(0));
  Thread& thread = s.self();
  Block& to = shared_block(shared, "st.async");
  if (!aligned(shared, bytes)) broken("st.async: address not a multiple of " + std::to_string(bytes));
  if (find_mbarrier(barrier, "st.async", thread.pc).block != &to)
    broken("st.async: mbarrier and destination belong to different blocks");
  std::array<unsigned char, 16> data{};
  std::memcpy(data.data(), value, bytes);
  start_load("st.async", barrier, bytes, [=, &thread, pc = thread.pc](const Clock& clock) {
    scheduler().judge_for(thread, {shared, bytes, Kind::kWrite, Proxy::kGeneric, pc, "st.async"}, clock, &thread, true);
    std::memcpy(shared, data.data(), bytes);
  });
}

// ---- Order and ends ---------------------------------------------------------------------------------------------------
void fence_proxy_async() {
  OwnBusiness quiet;
  Scheduler& s = scheduler();
  s.preempt(__builtin_return_address(0));
  Clock& clock = s.clock_of(s.self());
  clock.fence();
  ++clock.seen[s.clock_index(s.self())];   // so that what the warp writes from now on is younger than the fence
}

void red_add_f32(float* address, const float* values, int count) {
  OwnBusiness quiet;
  Scheduler& s = scheduler();
  s.preempt(__builtin_return_address(0));
  Thread& thread = s.self();
  if (!aligned(address, sizeof(float) * std::size_t(count)))
    broken("red.add.v" + std::to_string(count) + ".f32: address not a multiple of the vector");
  s.judge_for(
      thread,
      {address, sizeof(float) * std::size_t(count), Kind::kAtomic, Proxy::kGeneric, thread.pc, "red.add"},
      s.clock_of(thread), &thread);
  for (int i = 0; i < count; ++i) {
    // Really atomic, so that a thread sanitizer knows it for what it is.
    uint32_t expected = __atomic_load_n(reinterpret_cast<uint32_t*>(address + i), __ATOMIC_RELAXED), desired;
    do {
      float sum;
      std::memcpy(&sum, &expected, 4);
      sum += values[i];
      std::memcpy(&desired, &sum, 4);
    } while (!__atomic_compare_exchange_n(reinterpret_cast<uint32_t*>(address + i), &expected, desired, true,
                                          __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  }
}

/// Copies that a thread leaves behind land by themselves; a bulk store must have read its source, because the shared
/// memory goes away (PTX: cp.async.bulk.wait_group), and products need their accumulators.
void check_async_at_exit(Thread& thread) {
  Scheduler& s = scheduler();
  if (thread.copies_open) close_batch(thread, nullptr);
  for (const auto& store : thread.bulk) {
    if (store.waited_for) continue;
    s.fail(&thread,
           std::string(store.op->name) +
               ": the thread exits without waiting until its store has read shared memory",
           store.op->pc);
  }
  if (thread.wgmma_issued > thread.wgmma_waited)
    s.fail(&thread, "wgmma: the thread exits without waiting for its products", thread.pc);
}

}  // namespace dsa::emulator
