#include "timed_case.hpp"

#include <algorithm>
#include <cmath>

namespace dsa::bench {

using harness::Status;

namespace {

constexpr int64_t kSampledRows = 16;  ///< queries of a large problem that are compared with the reference
constexpr std::size_t kMostCopies = 512;
constexpr int kChecksBefore = 2;  ///< launches compared before timing

/// The first line: JSON rows and tables have no room for a map of errors.
std::string first_line(const std::string& message) {
  return message.substr(0, message.find('\n'));
}

Outcome failure(Status status, const std::string& message, const char* when) {
  Outcome outcome;
  outcome.failed = true;
  outcome.complaint = std::string(harness::status_name(status)) + " " + when + ": " + message;
  outcome.measured.row.error = first_line(outcome.complaint);
  return outcome;
}

}  // namespace

TimedCase::TimedCase(harness::Machine& machine, GpuTimer& timer, const harness::Case& item)
    : machine_(machine),
      timer_(timer),
      case_(item),
      problem_(item.make()),
      judge_(problem_, kSampledRows),
      work_(work_of(problem_)) {}

TimedCase::~TimedCase() = default;

std::string TimedCase::name(const harness::Case& item, const std::string& rung,
                            const MeasureOptions& options) {
  return result_name({stage_name(item.stage), rung, item.name, regime_name(options.regime), options.warm});
}

void TimedCase::make_copies(std::size_t count) {
  while (copies_.size() < count) copies_.push_back(std::make_unique<harness::Resident>(machine_, problem_));
}

Outcome TimedCase::time(const RungEntry& rung, const MeasureOptions& options) {
  Outcome outcome;
  if (const char* reason = rung.unsupported(problem_.args)) {
    outcome.measured.row.error = std::string("unsupported: ") + reason;
  } else {
    try {
      outcome = time_verified(rung, options);
    } catch (const TooSlow& slow) {
      outcome.measured.row.error = slow.what();
    } catch (const std::exception& error) {
      outcome = failure(Status::kRuntimeError, error.what(), "while timing");
    }
    // An error inside a kernel stays with the process; a refused launch does not.
    outcome.gpu_lost = !machine_.synchronize().empty();
  }
  outcome.measured.row.name = name(case_, rung.name, options);
  return outcome;
}

Outcome TimedCase::time_verified(const RungEntry& rung, const MeasureOptions& options) {
  if (!verified_.count(rung.name)) {
    const harness::CheckResult before =
        harness::check_rung(rung, machine_, problem_, judge_, {.repeats = kChecksBefore});
    if (before.status != Status::kPassed) return failure(before.status, before.message, "before timing");
    verified_.insert(rung.name);
  }

  // Cold: by the time a copy's turn comes again, the others have filled the L2 cache twice over.
  const double cold_copies = std::ceil(2 * timer_.l2_bytes() / std::max(1.0, tensor_bytes(problem_)));
  const std::size_t count =
      options.warm ? 1 : std::clamp(std::size_t(cold_copies), std::size_t(1), kMostCopies);
  make_copies(count);
  std::vector<Args> args;
  for (std::size_t i = 0; i < count; ++i) args.push_back(copies_[i]->args());

  Outcome outcome;
  outcome.measured = timer_.time(name(case_, rung.name, options), rung, args, work_, options);
  outcome.measured.row.counters["copies"] = double(count);

  const harness::RunResult after = harness::launch_once(rung, machine_, *copies_[count - 1]);
  if (after.status != Status::kPassed) return failure(after.status, after.message, "after timing");
  const harness::Verdict verdict = judge_.judge(after.outputs, rung.accuracy);
  if (!verdict.passed) return failure(Status::kIncorrect, verdict.message, "after timing");

  if (const auto ratio = outcome.measured.row.counter("yardstick_ratio")) {
    outcome.complaint = above_ceiling(yardstick_for(problem_.args, options.warm), *ratio, work_);
    if (!outcome.complaint.empty()) {
      outcome.failed = true;
      outcome.measured.row.counters["above_ceiling"] = 1;
    }
  }
  return outcome;
}

}  // namespace dsa::bench
