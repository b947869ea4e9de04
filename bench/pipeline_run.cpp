#include "pipeline_run.hpp"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "build_info.hpp"
#include "text.hpp"

namespace dsa::bench {

using harness::BadInput;
using harness::CheckResult;
using harness::Status;

namespace {

constexpr int64_t kSampledQueries = 16;  ///< of every stage, compared with the reference

void progress(const std::string& what) {
  std::fprintf(stderr, "pipeline: %s\n", what.c_str());
}

CheckResult check_outputs(const harness::Judge& judge, const harness::TensorMap& outputs, Accuracy accuracy) {
  const harness::Verdict verdict = judge.judge(outputs, accuracy);
  return {verdict.passed ? Status::kPassed : Status::kIncorrect, verdict.message};
}

}  // namespace

std::string sizes_name(const PipelineSizes& s) {
  return text("s_q:%d/s_kv:%d/h_q:%d/h_i:%d/d_i:%d/topk:%d", s.s_q, s.s_kv, s.h_q, s.h_i, s.d_i, s.topk);
}

Pipeline::Pipeline(const PipelineOptions& options)
    : options_(options),
      machine_(options.device == Device::kCpu ? nullptr : harness::open(options.device)),
      timer_(options.device == Device::kGpu ? std::make_unique<GpuTimer>(*machine_) : nullptr),
      data_(machine_.get()) {}

Pipeline::~Pipeline() = default;

bool Pipeline::crashed() const {
  return !lines_.empty() && lines_.back().check.status == Status::kRuntimeError;
}

void Pipeline::run() {
  const std::vector<PipelineStep> steps = pipeline_steps(options_.sizes);
  std::vector<std::vector<const RungEntry*>> chosen;  // for all steps, before anything runs
  for (const PipelineStep& step : steps) {
    chosen.push_back(machine_ ? choose_rungs(step) : std::vector<const RungEntry*>{});
  }
  progress("inputs for " + sizes_name(options_.sizes));
  data_.make_inputs(options_.sizes);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].stage == Stage::kIndexer) data_.make_index_weights(options_.sizes);
    run_step(steps[i], chosen[i]);
    if (crashed()) return;
  }
}

std::vector<const RungEntry*> Pipeline::choose_rungs(const PipelineStep& step) const {
  std::vector<const RungEntry*> able;
  std::string reason = "none is registered";
  for (const RungEntry& rung : rungs()) {
    if (rung.stage != step.stage || rung.device != options_.device) continue;
    if (const char* unsupported = rung.unsupported(step.args)) {
      reason = rung.name + ": " + unsupported;
    } else {
      able.push_back(&rung);
    }
  }
  const auto named = options_.steps.find(step.stage);
  if (named != options_.steps.end()) {
    const std::string& name = named->second;
    const RungEntry* rung = find_rung(step.stage, options_.device, name);
    if (!rung) {
      throw BadInput("no step '" + name + "' of " + stage_name(step.stage) + " on " +
                     device_name(options_.device));
    }
    const auto at = std::find(able.begin(), able.end(), rung);
    if (at == able.end()) throw NoSuchStep(name + ": " + rung->unsupported(step.args));
    std::rotate(at, at + 1, able.end());  // to the end, where the rung stands that feeds the next stage
  }
  if (able.empty()) throw NoSuchStep("no step for " + harness::describe(step.args) + "; " + reason);
  if (!options_.all) able.erase(able.begin(), able.end() - 1);
  return able;
}

void Pipeline::run_step(const PipelineStep& step, const std::vector<const RungEntry*>& chosen) {
  const harness::Problem problem = data_.problem(step);
  const harness::Judge judge(problem, kSampledQueries);
  PipelineLine line;
  line.label = step.label;
  line.work = work_of(problem);
  line.tensor_bytes = tensor_bytes(problem);
  if (!machine_) {
    line.rung = "reference";
    line.feeds_next = true;
    const harness::TensorMap outputs = harness::run_reference(problem);
    line.check = check_outputs(judge, outputs, harness::reference_accuracy(step.stage));
    data_.keep(step, outputs);
    record(std::move(line));
  }
  for (const RungEntry* rung : chosen) {
    PipelineLine one = line;
    one.rung = rung->name;
    one.feeds_next = rung == chosen.back();
    run_rung(step, *rung, judge, one);
    record(std::move(one));
    if (crashed()) return;
  }
}

void Pipeline::run_rung(const PipelineStep& step, const RungEntry& rung, const harness::Judge& judge,
                        PipelineLine& line) {
  const Args args = data_.device_args(step);
  line.check = launch(step, rung, args);
  if (line.check.status != Status::kPassed) return;
  const harness::TensorMap outputs = data_.read_outputs(step);
  line.check = check_outputs(judge, outputs, rung.accuracy);
  data_.keep(step, outputs);
  if (timer_ && line.check.status == Status::kPassed) time(rung, args, line);
}

CheckResult Pipeline::launch(const PipelineStep& step, const RungEntry& rung, const Args& args) {
  data_.poison_outputs(step);
  machine_->poison_shared_memory();
  try {
    const int error = rung.launch(args, machine_->stream());
    const std::string failure = machine_->synchronize();
    if (!failure.empty()) return {Status::kRuntimeError, failure};
    if (error != 0) return {Status::kRuntimeError, "launch returned error " + std::to_string(error)};
  } catch (const std::exception& error) {
    return {Status::kRuntimeError, error.what()};
  }
  const std::string damage = data_.guard_report(step);
  return {damage.empty() ? Status::kPassed : Status::kIncorrect, damage};
}

void Pipeline::time(const RungEntry& rung, const Args& args, PipelineLine& line) {
  try {
    // One set of buffers, as in a real pass: small tensors are still in the cache from the stage before.
    MeasureOptions how;
    how.warm = line.tensor_bytes < 2 * timer_->l2_bytes();
    line.row = timer_->time(row_name(line), rung, {args}, line.work, how).row;
    const YardstickChoice yardstick = yardstick_for(args, how.warm);
    const std::string complaint = above_ceiling(yardstick, line.row.counter("yardstick_ratio").value_or(0), line.work);
    if (!complaint.empty()) line.check = {Status::kIncorrect, complaint};
  } catch (const TooSlow& slow) {
    line.row.error = slow.what();
  } catch (const std::exception& error) {
    line.check = {Status::kRuntimeError, error.what()};
  }
}

void Pipeline::record(PipelineLine line) {
  line.row.name = row_name(line);
  if (line.check.status != Status::kPassed) line.row.error = line.check.message;
  line.row.counters[line.work.unit == Unit::kFlop ? "flop" : "bytes"] = line.work.amount;
  line.row.counters["tensor_bytes"] = line.tensor_bytes;
  progress(line.label + " " + line.rung + ": " + harness::status_name(line.check.status) +
           (line.check.message.empty() ? "" : "\n" + line.check.message));
  lines_.push_back(std::move(line));
}

std::string Pipeline::row_name(const PipelineLine& line) const {
  std::string label = line.label + "." + line.rung;
  std::replace(label.begin(), label.end(), ' ', '_');
  return result_name(
      {"pipeline", label, sizes_name(options_.sizes), timer_ ? regime_name(Regime::kSustained) : ""});
}

Results Pipeline::results() const {
  Results results;
  if (timer_) results.context = timer_->context();
  results.context["device"] = device_name(options_.device);
  add_build_context(results.context);
  for (const PipelineLine& line : lines_) results.put(line.row);
  return results;
}

}  // namespace dsa::bench
