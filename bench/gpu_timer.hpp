/// @file gpu_timer.hpp
/// Timing a rung beside its yardstick: gpu_timer.cpp with CUDA, gpu_timer_absent.cpp without.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "../cuda/harness/execute.hpp"
#include "results.hpp"

namespace dsa::bench {

/// A row and the samples that it summarises.
struct Measured {
  ResultRow row;
  std::vector<double> samples_s;
};

/// Times on the GPU. All work goes to the machine's stream.
class GpuTimer {
 public:
  /// Throws std::runtime_error in a build without CUDA. The machine must outlive it.
  explicit GpuTimer(harness::Machine& machine);
  ~GpuTimer();

  /// Times `rung`; launch i runs on copies[i modulo their count]. The yardstick is measured after it in the
  /// same regime, and the ratio uses the mean of that and of the measurement before: that of an earlier rung or
  /// row, or one of its own if there is none. Throws TooSlow, or std::runtime_error when a kernel fails.
  Measured time(const std::string& name, const RungEntry& rung, const std::vector<Args>& copies,
                const Work& work, const MeasureOptions& options);

  /// Times a yardstick for a row of its own; row.error says so if this build has none.
  Measured time_yardstick(YardstickKind kind, const MeasureOptions& options);

  /// "gpu", "cuda", "driver", "max_sm_clock_mhz", "power_limit_w".
  std::map<std::string, std::string> context() const;

  double l2_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsa::bench
