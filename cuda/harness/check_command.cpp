#include <chrono>
#include <cstdio>
#include <optional>

#include "cases.hpp"
#include "commands.hpp"
#include "golden.hpp"

namespace dsa::harness {

namespace {

constexpr int64_t kLargeSample = 48;  ///< queries of a large case that are compared with the reference

/// One line per result, and the sums for the last line.
class Report {
 public:
  void add(Stage stage, const std::string& step, const std::string& what, const CheckResult& result,
           double seconds) {
    ++counts_[int(result.status)];
    const bool failed = result.status == Status::kIncorrect || result.status == Status::kRuntimeError;
    std::string message = result.message;
    if (failed) {
      for (std::size_t at = 0; (at = message.find('\n', at)) != std::string::npos; at += 5) {
        message.replace(at, 1, "\n    ");
      }
    }
    std::printf("%-13s %s/%s  %s  (%.2f s)%s%s\n", status_name(result.status), stage_name(stage),
                step.c_str(), what.c_str(), seconds,
                message.empty() ? ""
                : failed        ? "\n    "
                                : ": ",
                message.c_str());
    std::fflush(stdout);
  }

  /// Prints the sums and returns the exit status.
  ExitStatus close() const {
    const int passed = counts_[int(Status::kPassed)], incorrect = counts_[int(Status::kIncorrect)],
              unsupported = counts_[int(Status::kUnsupported)], errors = counts_[int(Status::kRuntimeError)];
    std::printf("%d passed, %d incorrect, %d runtime errors, %d unsupported\n", passed, incorrect, errors,
                unsupported);
    if (incorrect + errors > 0) return kCheckFailed;
    if (passed == 0 && unsupported > 0) return kUnsupportedShape;
    if (passed == 0) throw BadInput("nothing to check: no case, file or step matches");
    return kDone;
  }

 private:
  int counts_[4] = {};
};

/// Runs the chosen steps of the chosen device.
class Checker {
 public:
  explicit Checker(const CheckCommand& command)
      : command_(command), device_(choose_device(command.device, command.step)) {
    if (!command.stage.empty()) stage_by_name(command.stage);
    if (!command.step.empty()) require_step(command.stage, command.step);
    machine_ = open_for_step(device_, command.step);
  }

  /// Checks every chosen step of the problem's stage.
  void check(const Problem& problem, const Judge& judge, const std::string& what) {
    const Stage stage = stage_of(problem.args);
    if (device_ == Device::kCpu) {
      timed(stage, kReference, what, [&]() -> CheckResult {
        const Verdict verdict = judge.judge(run_reference(problem), reference_accuracy(stage));
        return {verdict.passed ? Status::kPassed : Status::kIncorrect, verdict.message};
      });
      return;
    }
    for (const RungEntry* rung : rungs_of(stage, device_)) {
      if (!command_.step.empty() && rung->name != command_.step) continue;
      const Status status = timed(stage, rung->name, what, [&] {
        return check_rung(*rung, *machine_, problem, judge, command_.options);
      });
      if (status == Status::kRuntimeError) {  // may have left the device unusable
        machine_.reset();
        machine_ = open(device_);
      }
    }
  }

  /// Whether any step would be checked: the reference result of a large case takes time.
  bool concerns(Stage stage) const {
    if (device_ == Device::kCpu) return true;
    if (command_.step.empty()) return !rungs_of(stage, device_).empty();
    return find_rung(stage, device_, command_.step) != nullptr;
  }

  ExitStatus close() const { return report_.close(); }
  Device device() const { return device_; }

 private:
  template <class Body>
  Status timed(Stage stage, const std::string& step, const std::string& what, const Body& body) {
    const auto start = std::chrono::steady_clock::now();
    const CheckResult result = body();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    report_.add(stage, step, what, result, seconds.count());
    return result.status;
  }

  const CheckCommand& command_;
  Device device_;
  std::unique_ptr<Machine> machine_;
  Report report_;
};

void check_files(const CheckCommand& command, Checker& checker) {
  std::optional<Stage> stage;
  if (!command.stage.empty()) stage = stage_by_name(command.stage);
  for (const std::string& file : command.files) {
    const std::string name = std::filesystem::path(file).filename().string();
    for (const GoldenProblem& golden : read_golden(file, stage, command.scalars)) {
      const std::string what = golden.part.empty() ? name : name + " [" + golden.part + "]";
      const Judge judge =
          golden.want.empty() ? Judge(golden.problem) : Judge(golden.problem, golden.want, file);
      checker.check(golden.problem, judge, what);
    }
  }
}

void check_cases(const CheckCommand& command, Checker& checker) {
  if (command.large && checker.device() != Device::kGpu) throw BadInput("--large needs --device gpu");
  for (const Case& item : cases()) {
    if (item.kind != (command.large ? CaseKind::kLarge : CaseKind::kSmall)) continue;
    if (!command.stage.empty() && command.stage != stage_name(item.stage)) continue;
    if (item.name.find(command.case_text) == std::string::npos || !checker.concerns(item.stage)) continue;
    const Problem problem = item.make();
    checker.check(problem, Judge(problem, command.large ? kLargeSample : 0), item.name);
  }
}

}  // namespace

ExitStatus check(const CheckCommand& command) {
  Checker checker(command);
  if (command.files.empty()) {
    check_cases(command, checker);
  } else {
    check_files(command, checker);
  }
  return checker.close();
}

}  // namespace dsa::harness
