/// wgmma: products that a warpgroup issues together and that happen later.
///
/// A product is complete as an instruction when all 128 threads have issued it. Each warp has a tensor core of its own, which
/// makes the warp's 16 rows of D from 16 rows of A and all of B; they go at their own pace. A warp's part is executed, in
/// order, when the schedule says so, at the latest when a thread of the warp waits: to have waited says nothing of what the
/// other three still read. From issue to wait the accumulator registers hold NaN.
///
/// Product, fence, commit and wait are executed by a warpgroup as one, and so is setmaxnreg: every thread must come to the same
/// ones in the same order. aligned_step() compares them.
#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>

#include "../../../reference/numeric.hpp"
#include "matrix.hpp"
#include "scheduler.hpp"
#include "source.hpp"

namespace dsa::emulator {

namespace {

constexpr uint32_t kPoison = 0x7fc0dead;   // a NaN no arithmetic makes
constexpr unsigned kPartRows = 16;         // of a warp

std::string text(const WgmmaShape& shape) {
  const bool bf16_type = shape.type == WgmmaShape::Type::kBf16;
  return "wgmma m64n" + std::to_string(shape.n) + "k" + std::to_string(shape.k()) + (bf16_type ? " bf16" : " e4m3") +
         (shape.a_from_registers ? " RS" : " SS");
}

bool same(const WgmmaShape& a, const WgmmaShape& b) {
  return a.n == b.n && a.type == b.type && a.a_from_registers == b.a_from_registers && a.a_mn_major == b.a_mn_major &&
         a.b_mn_major == b.b_mn_major;
}

/// Number of its warpgroup's first thread.
std::size_t first_of_warpgroup(const Thread& thread) { return thread.number / kWarpgroupSize * kWarpgroupSize; }
Warpgroup& warpgroup_of(Thread& thread) { return thread.block->warpgroups[thread.number / kWarpgroupSize]; }

float value_of(const unsigned char* bytes, WgmmaShape::Type type) {
  if (type == WgmmaShape::Type::kE4m3) return to_float(e4m3{*bytes});
  uint16_t bits;
  std::memcpy(&bits, bytes, 2);
  return to_float(bf16{bits});
}

// ---- Execution --------------------------------------------------------------------------------------------------
/// Reads `rows` x k elements of an operand, from row `first` on, from shared memory, as the async proxy.
void read_operand(const WgmmaOp& op, uint64_t descriptor, bool mn_major, unsigned first, unsigned rows,
                  const char* name, std::vector<float>& out) {
  Scheduler& s = scheduler();
  const MatrixDescriptor d = decode(descriptor);
  const unsigned bytes = op.shape.type == WgmmaShape::Type::kBf16 ? 2 : 1, k = unsigned(op.shape.k());
  const unsigned char* shared = op.leader->block->shared;
  out.resize(std::size_t(rows) * k);
  // 16 bytes are contiguous in every layout: along k when K-major, along the rows when MN-major.
  const unsigned run = 16 / bytes;
  for (unsigned i = 0; i < (mn_major ? rows / run : rows); ++i) {
    for (unsigned j = 0; j < (mn_major ? k : k / run); ++j) {
      const unsigned row = mn_major ? i * run : i, x = mn_major ? j : j * run;
      const uint32_t address = element_address(d, mn_major, bytes, first + row, x);
      if (address < kSharedWindowStart)
        s.fail(op.leader, text(op.shape) + ": " + name + " reads below shared memory", op.pc);
      const unsigned char* from = shared + (address - kSharedWindowStart);
      s.judge_for(*op.leader, {from, 16, Access::Kind::kRead, Access::Proxy::kAsync, op.pc, name}, op.clock, &op);
      for (unsigned e = 0; e < run; ++e) {
        const std::size_t place = mn_major ? std::size_t(row + e) * k + x : std::size_t(row) * k + x + e;
        out[place] = value_of(from + e * bytes, op.shape.type);
      }
    }
  }
}

/// A warp's part.
void execute(WgmmaOp& op, unsigned warp) {
  static std::vector<float> a, b;
  const unsigned k = unsigned(op.shape.k()), n = unsigned(op.shape.n), first = kPartRows * warp;
  const unsigned bytes = op.shape.type == WgmmaShape::Type::kBf16 ? 2 : 1;
  if (op.shape.a_from_registers) {
    a.resize(kPartRows * k);
    for (unsigned t = 32 * warp; t < 32 * warp + 32; ++t) {
      for (unsigned byte = 0; byte < 16; byte += bytes) {
        const Place place = a_register_place(t, byte, bytes);
        a[(place.row - first) * k + place.column] =
            value_of(reinterpret_cast<const unsigned char*>(op.a[t].data()) + byte, op.shape.type);
      }
    }
  } else {
    read_operand(op, op.a_descriptor, op.shape.a_mn_major, first, kPartRows, "wgmma operand A", a);
  }
  read_operand(op, op.b_descriptor, op.shape.b_mn_major, 0, n, "wgmma operand B", b);
  multiply_accumulate(op.chain->values.data() + std::size_t(first) * n, a.data(), b.data(), kPartRows, n, k,
                      op.accumulate, bytes == 2 ? kBf16Adder : kE4m3Adder);
}

/// A warp's parts in order: of `last` and of everything before it.
void execute_through(Warpgroup& group, unsigned warp, uint64_t last) {
  while (group.executed[warp] <= last) {
    const std::shared_ptr<WgmmaOp> op = group.ops[group.executed[warp] - group.first_op];
    ++group.executed[warp];
    execute(*op, warp);
    op->leader->engine.release(op->parts[warp].get());
    scheduler().set_done(*op->parts[warp], 1);
  }
}

// ---- Issue --------------------------------------------------------------------------------------------------------
/// The chain that this thread's accumulators belong to while they are in flight, if they are.
std::shared_ptr<AccumulatorChain> chain_in_flight(Warpgroup& group, std::size_t t, const float* d, int n) {
  for (const auto& chain : group.chains) {
    const float* registers = chain->registers[t];
    if (!registers || d + n / 2 <= registers || registers + chain->n / 2 <= d) continue;
    if (registers != d || chain->n != n)
      broken("wgmma: accumulators overlap those of a product of another shape that is in flight");
    return chain;
  }
  return nullptr;
}

void join_chain(AccumulatorChain& chain, std::size_t t, float* d, bool accumulate) {
  if (chain.registers[t] == d) return;
  if (chain.registers[t]) broken("wgmma divergence: the accumulators are not those that the other threads give");
  chain.registers[t] = d;
  ++chain.users;
  const auto n = unsigned(chain.n);
  for (unsigned i = 0; i < n / 2; ++i) {
    const Place place = accumulator_place(unsigned(t), i);
    if (accumulate) chain.values[place.row * n + place.column] = d[i];
    d[i] = std::bit_cast<float>(kPoison);
  }
}

/// Gives a thread its accumulators back, for all chains whose last product is before `bound`.
void leave_chains(Thread& thread, uint64_t bound) {
  Warpgroup& group = warpgroup_of(thread);
  const std::size_t t = thread.number % kWarpgroupSize;
  for (const auto& chain : group.chains) {
    float* d = chain->registers[t];
    if (!d || chain->last_op >= bound) continue;
    const auto n = unsigned(chain->n);
    for (unsigned i = 0; i < n / 2; ++i) {
      if (std::bit_cast<uint32_t>(d[i]) != kPoison)
        broken("wgmma: accumulator " + std::to_string(i) + " was written while the product that uses it was in flight");
      const Place place = accumulator_place(unsigned(t), i);
      d[i] = chain->values[place.row * n + place.column];
    }
    chain->registers[t] = nullptr;
    --chain->users;
  }
  std::erase_if(group.chains, [](const auto& chain) { return chain->users == 0; });
}

std::string wait_details(const Thread& thread) {
  const auto& op = *static_cast<const WgmmaOp*>(thread.waits_for);
  return "for " + text(op.shape) + ", which " + std::to_string(op.issued_by) + " of 128 threads have issued";
}

// ---- Alignment ----------------------------------------------------------------------------------------------------
std::string aligned_text(const char* name, std::optional<unsigned> argument) {
  return name + (argument ? " " + std::to_string(*argument) : "");
}

}  // namespace

void aligned_step(const char* name, const void* pc, std::optional<unsigned> argument) {
  Scheduler& s = scheduler();
  Thread& thread = s.self();
  const std::size_t size = std::min(kWarpgroupSize, thread.block->threads.size() - first_of_warpgroup(thread));
  Warpgroup& group = warpgroup_of(thread);
  const uint64_t number = thread.aligned_steps++;
  if (number == group.first_step + group.steps.size()) group.steps.push_back({name, argument, thread.number, pc});
  AlignedStep& step = group.steps[number - group.first_step];
  if (std::string_view(step.name) != name || step.argument != argument) {
    s.fail(&thread,
           "warpgroup divergence: after " + std::to_string(number) + " instructions that a warpgroup executes as one, " +
               aligned_text(name, argument) + " here, " + aligned_text(step.name, step.argument) + " in thread " +
               std::to_string(step.first) + where(step.pc),
           pc);
  }
  if (++step.came == size) group.steps.pop_front(), ++group.first_step;   // it can only be the first
}

void check_warpgroups_at_exit(Block& block) {
  for (const Warpgroup& group : block.warpgroups) {
    if (group.steps.empty()) continue;
    const AlignedStep& step = group.steps.front();
    scheduler().fail(block.threads[step.first],
                     "warpgroup divergence: the block exits after " + std::to_string(step.came) + " threads of a warpgroup have executed " +
                         aligned_text(step.name, step.argument),
                     step.pc);
  }
}

void wgmma_fence() {
  OwnBusiness quiet;
  scheduler().preempt(__builtin_return_address(0));
  aligned_step("wgmma.fence", __builtin_return_address(0));
  scheduler().self().wgmma_fenced = true;
}

void wgmma(const WgmmaShape& shape, float* d, const uint32_t* a, uint64_t a_descriptor, uint64_t b_descriptor,
           bool accumulate) {
  OwnBusiness quiet;
  Scheduler& s = scheduler();
  s.preempt(__builtin_return_address(0));
  aligned_step("wgmma", __builtin_return_address(0));
  Thread& thread = s.self();
  const std::size_t t = thread.number % kWarpgroupSize;
  if (first_of_warpgroup(thread) + kWarpgroupSize > thread.block->threads.size())
    broken(text(shape) + ": the warpgroup has fewer than 128 threads");
  if (!thread.wgmma_fenced)
    broken(
        text(shape) +
        ": no wgmma.fence since the start or the last wait; registers may be read and written out of order");
  if (shape.type == WgmmaShape::Type::kE4m3 && (shape.a_mn_major || shape.b_mn_major))
    broken(text(shape) + ": e4m3 operands must be K-major");
  for (const uint64_t descriptor : {shape.a_from_registers ? 0 : a_descriptor, b_descriptor})
    if (const std::string reason = illegal(descriptor); !reason.empty())
      broken(text(shape) + ": illegal descriptor, " + reason);

  Warpgroup& group = warpgroup_of(thread);
  const uint64_t number = thread.wgmma_issued++;
  std::shared_ptr<AccumulatorChain> chain = chain_in_flight(group, t, d, shape.n);
  if (number == group.first_op + group.ops.size()) {   // the first thread to get here
    auto op = std::make_shared<WgmmaOp>();
    op->shape = shape;
    op->a_descriptor = a_descriptor, op->b_descriptor = b_descriptor;
    op->accumulate = accumulate;
    if (shape.a_from_registers) op->a.resize(kWarpgroupSize);
    op->leader = thread.block->threads[first_of_warpgroup(thread)];
    op->issuer = thread.number;
    op->pc = thread.pc;
    if (!chain) {
      chain = group.chains.emplace_back(std::make_shared<AccumulatorChain>());
      chain->n = shape.n;
      chain->values.assign(std::size_t(64 * shape.n), 0.0f);
    }
    op->chain = chain;
    chain->last_op = number;
    op->clock = s.clock_of(thread);
    group.ops.push_back(std::move(op));
  }
  const std::shared_ptr<WgmmaOp> op = group.ops[number - group.first_op];
  if (!same(op->shape, shape) || op->b_descriptor != b_descriptor || op->accumulate != accumulate ||
      (!shape.a_from_registers && op->a_descriptor != a_descriptor))
    broken("wgmma divergence: product " + std::to_string(number) + " of the warpgroup is " + text(shape) +
           " here, and " + text(op->shape) +
           (same(op->shape, shape) ? " with another descriptor or scale-d" : "") + " in thread " +
           std::to_string(op->issuer));
  if (chain && chain != op->chain)
    broken("wgmma divergence: this thread has not waited for products that the others have waited for");
  join_chain(*op->chain, t, d, accumulate);
  if (shape.a_from_registers) std::memcpy(op->a[t].data(), a, sizeof op->a[t]);
  // What every warp may rely on: the least of what each may.
  const Clock& clock = s.clock_of(thread);
  op->clock.time = std::max(op->clock.time, clock.time);
  for (std::size_t w = 0; w < clock.seen.size(); ++w) {
    op->clock.seen[w] = std::min(op->clock.seen[w], clock.seen[w]);
    op->clock.fenced[w] = std::min(op->clock.fenced[w], clock.fenced[w]);
  }
  release_order(&*op);
  if (++op->issued_by < kWarpgroupSize) return;

  s.count_wgmma(shape);
  uint64_t& tensor_free = thread.block->tensor_free;
  const uint64_t begin = std::max(op->clock.time, tensor_free);
  tensor_free = begin + Model::product(shape.n);
  s.record(Span::Kind::kProduct, *op->leader, begin, tensor_free, text(shape));
  for (unsigned warp = 0; warp < op->parts.size(); ++warp) {
    op->parts[warp] = new_op(*op->leader, op->pc, "wgmma");
    op->parts[warp]->end = tensor_free;
    op->parts[warp]->steps.push_back([&group, warp, number] { execute_through(group, warp, number); });
  }
  for (std::size_t i = 0; i < kWarpgroupSize; ++i) {   // threads that wait for it to be issued
    Thread& other = *thread.block->threads[first_of_warpgroup(thread) + i];
    if (other.waiting && other.waits_for == op.get()) s.wake(other);
  }
  for (const auto& part : op->parts) s.start(part);
}

void wgmma_commit_group() {
  OwnBusiness quiet;
  scheduler().preempt(__builtin_return_address(0));
  aligned_step("wgmma.commit_group", __builtin_return_address(0));
  Thread& thread = scheduler().self();
  thread.wgmma_groups.push_back(thread.wgmma_issued);
}

void wgmma_wait_group(unsigned pending) {
  OwnBusiness quiet;
  Scheduler& s = scheduler();
  s.preempt(__builtin_return_address(0));
  aligned_step("wgmma.wait_group", __builtin_return_address(0), pending);
  Thread& thread = s.self();
  thread.wgmma_fenced = false;
  if (thread.wgmma_groups.size() <= pending) return;
  const uint64_t bound = thread.wgmma_groups[thread.wgmma_groups.size() - 1 - pending];
  thread.wgmma_groups.erase(thread.wgmma_groups.begin(), thread.wgmma_groups.end() - pending);
  if (bound == thread.wgmma_waited) return;
  Warpgroup& group = warpgroup_of(thread);
  const std::shared_ptr<WgmmaOp> last = group.ops[bound - 1 - group.first_op];
  if (last->issued_by < kWarpgroupSize) s.suspend("wgmma.wait_group", last.get(), 0, wait_details);
  s.await(*last->parts[thread.number % kWarpgroupSize / 32], 1, "wgmma.wait_group");
  leave_chains(thread, bound);
  thread.wgmma_waited = bound;

  // Forget what everybody has waited for.
  uint64_t least = bound;
  for (std::size_t i = 0; i < kWarpgroupSize; ++i)
    least = std::min(least, thread.block->threads[first_of_warpgroup(thread) + i]->wgmma_waited);
  for (; group.first_op < least; ++group.first_op) group.ops.pop_front();
}

}  // namespace dsa::emulator
