/// @file timing.hpp
/// What a measurement is: the samples of one kernel, how many to take, and what they are summarised to.
#pragma once

#include <optional>
#include <stdexcept>
#include <vector>

namespace dsa::bench {

/// A GPU under load has two speeds. For the first milliseconds after a pause products run 15-20 % faster than
/// after about a second of work, when its power limit holds the clock down. Neither is wrong; mixing them is.
enum class Regime {
  kBurst,      ///< every sample follows a pause of 0.1 s
  kSustained,  ///< samples follow a second of the same work, without a pause
};
const char* regime_name(Regime regime);  ///< "burst", "sustained"

struct MeasureOptions {
  Regime regime = Regime::kSustained;
  bool warm = false;  ///< one set of buffers, which may stay in the cache, instead of a rotation over several
  double soak_s = 1;  ///< sustained only: work before the first sample
  double sample_s = 1;  ///< sustained only: time for all samples, unless the fewest need more
};

/// `seconds` of GPU time: half, but at most a second, to reach the sustained regime, the rest for samples.
MeasureOptions measure_options(Regime regime, double seconds);

/// One launch takes longer than kTooSlowSeconds.
struct TooSlow : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Time of one launch. Every sample is the mean over `launches_per_sample` launches between two events.
struct Timing {
  std::vector<double> samples_s;  ///< in the order of measurement
  int launches_per_sample = 1;
  double mean_s = 0;
  double median_s = 0;
  double min_s = 0;
  double p10_s = 0;
  double p90_s = 0;
  std::optional<double> sm_clock_mhz;  ///< while the samples were taken
  std::optional<double> power_w;
};

/// Fills in the statistics. At least one sample.
Timing summarize(std::vector<double> samples_s, int launches_per_sample);

/// The p-quantile, 0 <= p <= 1, linear between neighbours of the sorted samples. At least one sample.
double quantile(std::vector<double> samples, double p);

inline constexpr double kSampleSeconds =
    0.5e-3;  ///< a sample lasts at least this long; events resolve 0.5 us
inline constexpr double kSlowLaunchSeconds = 0.3;  ///< longer launches are sampled kFewSamples times
inline constexpr double kTooSlowSeconds = 20;      ///< longer launches are not timed at all
inline constexpr int kLeastSamples = 10;
inline constexpr int kFewSamples = 5;
inline constexpr int kMostSamples = 500;

struct SamplePlan {
  int launches_per_sample;
  int samples;
};

/// How to sample launches of `launch_s` seconds within `budget_s` seconds.
SamplePlan plan_samples(double launch_s, double budget_s);

}  // namespace dsa::bench
