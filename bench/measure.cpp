#include "measure.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>
#include <utility>
#include <vector>

#include "../cuda/harness/cuda_check.hpp"
#include "text.hpp"

namespace dsa::bench {

namespace {

constexpr double kPauseSeconds = 0.1;  ///< of a burst: on an H200, 0.3 s gives the same, 0.04 s 3 % more
constexpr double kQueuedSeconds =
    50e-3;                          ///< work kept in the stream, so that reading a sensor starves nobody
constexpr int kSensorReadings = 8;  ///< per measurement

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

class Event {
 public:
  Event() { DSA_CUDA_CHECK(cudaEventCreate(&event_)); }
  ~Event() {
    if (event_) cudaEventDestroy(event_);
  }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&&) = delete;

  void record(cudaStream_t stream) { DSA_CUDA_CHECK(cudaEventRecord(event_, stream)); }
  void synchronize() const { DSA_CUDA_CHECK(cudaEventSynchronize(event_)); }
  double seconds_since(const Event& begin) const {
    float ms = 0;
    DSA_CUDA_CHECK(cudaEventElapsedTime(&ms, begin.event_, event_));
    return ms * 1e-3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

void check_launch(int error) {
  harness::cuda_check(cudaError_t(error), "launch");
}

/// The mean of the readings that were there.
class Mean {
 public:
  void add(const std::optional<double>& value) {
    if (!value) return;
    sum_ += *value;
    ++count_;
  }
  std::optional<double> value() const { return count_ ? std::optional(sum_ / count_) : std::nullopt; }

 private:
  double sum_ = 0;
  int count_ = 0;
};

/// One work item on one stream; numbers its launches.
class Measurement {
 public:
  Measurement(const Enqueue& work, cudaStream_t stream, const Sensors& sensors)
      : work_(work), stream_(stream), sensors_(sensors) {}

  /// Seconds of one launch, good to some percent. Also the warm-up.
  double estimate() {
    double launch_s = 0;
    // The first launch may include loading the kernel, and a single short one mostly measures the launch
    // itself: each round times as many as the round before suggests.
    for (int round = 0, count = 1; round < 3; ++round) {
      launch_s = time_batch(work_, count, stream_);
      if (launch_s > kTooSlowSeconds) {
        throw TooSlow("one launch takes " + time_text(launch_s) + "; launches longer than " +
                      time_text(kTooSlowSeconds) + " are not timed");
      }
      if (launch_s > kSlowLaunchSeconds) break;
      count = plan_samples(launch_s, 0).launches_per_sample;
    }
    return launch_s;
  }

  std::vector<double> burst(int launches, int samples, double launch_s) {
    std::vector<double> seconds;
    for (int i = 0; i < samples; ++i) {
      DSA_CUDA_CHECK(cudaStreamSynchronize(stream_));
      std::this_thread::sleep_for(std::chrono::duration<double>(kPauseSeconds));
      Event begin, end;
      // An untimed launch: after a pause the first one is up to 50 us late, and the GPU is busy while the timed ones are
      // enqueued. Slow launches do without.
      if (launch_s < kSlowLaunchSeconds) enqueue(1);
      begin.record(stream_);
      enqueue(launches);
      end.record(stream_);
      read_sensors();
      end.synchronize();
      seconds.push_back(end.seconds_since(begin) / launches);
    }
    return seconds;
  }

  /// Keeps the GPU busy; returns with work still in the stream.
  void soak(double seconds, int launches) {
    Event done[2];
    const Clock::time_point start = Clock::now();
    for (int i = 0; seconds_since(start) < seconds; ++i) {
      enqueue(launches);
      done[i % 2].record(stream_);
      if (i > 0) done[(i - 1) % 2].synchronize();
    }
  }

  std::vector<double> sustained(int launches, int samples, double launch_s) {
    const int queued = std::max(2, int(kQueuedSeconds / (launches * launch_s)));
    const int sensor_stride = std::max(1, samples / kSensorReadings);
    std::vector<Event> marks(std::size_t(samples) + 1);
    marks[0].record(stream_);
    for (int i = 0; i < samples; ++i) {
      enqueue(launches);
      marks[i + 1].record(stream_);
      if (i % sensor_stride == 0) read_sensors();
      if (i >= queued) marks[i - queued].synchronize();
    }
    marks.back().synchronize();
    std::vector<double> seconds;
    for (int i = 0; i < samples; ++i) seconds.push_back(marks[i + 1].seconds_since(marks[i]) / launches);
    return seconds;
  }

  std::optional<double> sm_clock_mhz() const { return sm_clock_mhz_.value(); }
  std::optional<double> power_w() const { return power_w_.value(); }

 private:
  void enqueue(int count) {
    for (int i = 0; i < count; ++i) check_launch(work_(next_launch_++, stream_));
  }

  void read_sensors() {
    const SensorReading reading = sensors_.read();
    sm_clock_mhz_.add(reading.sm_clock_mhz);
    power_w_.add(reading.power_w);
  }

  const Enqueue& work_;
  cudaStream_t stream_;
  const Sensors& sensors_;
  int64_t next_launch_ = 0;
  Mean sm_clock_mhz_, power_w_;
};

}  // namespace

Timing measure(const Enqueue& work, void* stream, const MeasureOptions& options, const Sensors& sensors) {
  Measurement measurement(work, static_cast<cudaStream_t>(stream), sensors);
  const double launch_s = measurement.estimate();
  std::vector<double> seconds;
  SamplePlan plan{};
  if (options.regime == Regime::kBurst) {
    plan = plan_samples(launch_s, 0);  // the fewest: nearly all the time goes into the pauses
    seconds = measurement.burst(plan.launches_per_sample, plan.samples, launch_s);
  } else {
    plan = plan_samples(launch_s, options.sample_s);
    measurement.soak(options.soak_s, plan.launches_per_sample);
    seconds = measurement.sustained(plan.launches_per_sample, plan.samples, launch_s);
  }
  Timing timing = summarize(std::move(seconds), plan.launches_per_sample);
  timing.sm_clock_mhz = measurement.sm_clock_mhz();
  timing.power_w = measurement.power_w();
  return timing;
}

double time_batch(const Enqueue& work, int count, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  Event begin, end;
  begin.record(on);
  for (int i = 0; i < count; ++i) check_launch(work(i, stream));
  end.record(on);
  end.synchronize();
  return end.seconds_since(begin) / count;
}

}  // namespace dsa::bench
