#include "trace.hpp"

#include <algorithm>

#include "scheduler.hpp"

namespace dsa::emulator {

namespace {

std::vector<Trace> earlier;   // launches; that of the last one is the scheduler's
bool launched = false;

void keep_last_launch() {
  if (launched) earlier.push_back(std::move(scheduler().trace));
  scheduler().trace = {};
  launched = false;
}

bool is_first(const Block& block) { return block.index.x == 0 && block.index.y == 0 && block.index.z == 0; }

}  // namespace

void start_trace() {
  keep_last_launch();
  earlier.clear();
  scheduler().tracing = true;
}

std::vector<Trace> take_traces() {
  keep_last_launch();
  scheduler().tracing = false;
  return std::move(earlier);
}

void trace_launch(dim3 grid, dim3 block, std::size_t shared_bytes) {
  Scheduler& s = scheduler();
  if (!s.tracing) return;
  keep_last_launch();
  launched = true;
  s.trace.grid = grid;
  s.trace.block = block;
  s.trace.shared_bytes = shared_bytes;
  s.trace.roles.resize((std::size_t(block.x) * block.y * block.z + kWarpSize - 1) / kWarpSize);
}

void Scheduler::record(Span::Kind kind, const Thread& thread, uint64_t begin, uint64_t end, std::string label) {
  if (!tracing || !is_first(*thread.block) || end <= begin) return;
  // Of a product, `thread` is the first to have issued it and may be elsewhere by now; the running one has just issued it.
  const char* step = kind == Span::Kind::kStep ? thread.step : self().step;
  trace.spans.push_back({kind, thread.warp(), begin, end, std::move(label), step ? step : ""});
  trace.end = std::max(trace.end, end);
}

/// Steps and waits are drawn for a warp, by its first lane.
void Scheduler::end_step(Thread& thread) {
  if (thread.lane() == 0 && thread.step)
    record(Span::Kind::kStep, thread, thread.step_began, clock_of(thread).time, thread.step);
  thread.step = nullptr;
}

void trace_role(const char* role) {
  OwnBusiness quiet;
  Scheduler& s = scheduler();
  Thread& thread = s.self();
  thread.role = role;
  if (s.tracing && is_first(*thread.block)) s.trace.roles[thread.warp()] = role;
}

void trace_step(const char* step, unsigned clocks) {
  OwnBusiness quiet;
  Scheduler& s = scheduler();
  s.preempt(__builtin_return_address(0));
  Thread& thread = s.self();
  s.end_step(thread);
  thread.step = step;
  thread.step_began = s.clock_of(thread).time;
  if (thread.lane() == 0) s.clock_of(thread).time += clocks;
}

WaitSpan::WaitSpan(Thread& thread, std::string (*what)(const void*), const void* object)
    : thread_(thread), what_(what), object_(object), begin_(scheduler().clock_of(thread).time) {}

WaitSpan::~WaitSpan() {
  Scheduler& s = scheduler();
  const uint64_t end = s.clock_of(thread_).time;
  if (!s.tracing || thread_.lane() != 0 || !is_first(*thread_.block) || end == begin_) return;   // names take a while
  s.record(Span::Kind::kWait, thread_, begin_, end, what_(object_));
}

}  // namespace dsa::emulator
