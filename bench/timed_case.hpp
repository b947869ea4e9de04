/// @file timed_case.hpp
/// One problem on the GPU, timed by any number of rungs, each verified before and after.
#pragma once

#include <memory>
#include <string>
#include <set>
#include <vector>

#include "../cuda/harness/cases.hpp"
#include "../cuda/harness/check.hpp"
#include "gpu_timer.hpp"

namespace dsa::bench {

/// What came of timing one rung.
struct Outcome {
  Measured measured;    ///< measured.row.error says why there is no measurement
  bool failed = false;  ///< wrong, or crashed, or faster than its ceiling; an unsupported size is no failure
  bool gpu_lost = false;  ///< the kernel left the GPU in an error that only a new process gets rid of
  std::string complaint;  ///< for the terminal: the whole message of a failure
};

class TimedCase {
 public:
  /// Makes the problem and, for a sample of its rows, the reference result. Both arguments must outlive it.
  TimedCase(harness::Machine& machine, GpuTimer& timer, const harness::Case& item);
  ~TimedCase();

  /// "topk/01_naive/rows:4096/n:32768/topk:2048/regime:sustained".
  static std::string name(const harness::Case& item, const std::string& rung, const MeasureOptions& options);

  /// Verifies the rung (once per rung), times it, then verifies the outputs of one more launch on buffers
  /// that were timed: a kernel that is right ten times and then wrong is not fast.
  Outcome time(const RungEntry& rung, const MeasureOptions& options);

 private:
  Outcome time_verified(const RungEntry& rung, const MeasureOptions& options);
  void make_copies(std::size_t count);

  harness::Machine& machine_;
  GpuTimer& timer_;
  const harness::Case& case_;
  harness::Problem problem_;
  harness::Judge judge_;
  Work work_;
  std::vector<std::unique_ptr<harness::Resident>> copies_;
  std::set<std::string> verified_;  ///< names of rungs
};

}  // namespace dsa::bench
