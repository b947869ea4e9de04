#include "timing.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

namespace dsa::bench {

const char* regime_name(Regime regime) {
  return regime == Regime::kBurst ? "burst" : "sustained";
}

MeasureOptions measure_options(Regime regime, double seconds) {
  MeasureOptions options;
  options.regime = regime;
  options.soak_s = std::min(options.soak_s, seconds / 2);
  options.sample_s = seconds - options.soak_s;
  return options;
}

double quantile(std::vector<double> samples, double p) {
  if (samples.empty()) throw std::invalid_argument("quantile of no samples");
  std::sort(samples.begin(), samples.end());
  const double position = p * double(samples.size() - 1);
  const std::size_t below = std::size_t(position);
  const std::size_t above = std::min(below + 1, samples.size() - 1);
  return samples[below] + (position - double(below)) * (samples[above] - samples[below]);
}

Timing summarize(std::vector<double> samples_s, int launches_per_sample) {
  Timing timing;
  timing.median_s = quantile(samples_s, 0.5);
  timing.min_s = quantile(samples_s, 0);
  timing.p10_s = quantile(samples_s, 0.1);
  timing.p90_s = quantile(samples_s, 0.9);
  timing.mean_s = std::accumulate(samples_s.begin(), samples_s.end(), 0.0) / double(samples_s.size());
  timing.launches_per_sample = launches_per_sample;
  timing.samples_s = std::move(samples_s);
  return timing;
}

SamplePlan plan_samples(double launch_s, double budget_s) {
  constexpr double kShortest = 1e-7;  // no launch is shorter; keeps the division meaningful
  launch_s = std::max(launch_s, kShortest);
  const double launches = std::ceil(kSampleSeconds / launch_s);
  if (launch_s > kSlowLaunchSeconds) return {1, kFewSamples};
  const double samples = budget_s / (launches * launch_s);
  return {int(launches), int(std::clamp<double>(samples, kLeastSamples, kMostSamples))};
}

}  // namespace dsa::bench
