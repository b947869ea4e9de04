// Quantiles, how many samples are taken, and numbers as text.
#include <doctest/doctest.h>

#include "bench/text.hpp"
#include "bench/timing.hpp"

using namespace dsa::bench;

TEST_CASE("quantiles interpolate between sorted samples") {
  const std::vector<double> samples{5, 1, 4, 2, 3};
  CHECK(quantile(samples, 0) == 1);
  CHECK(quantile(samples, 0.5) == 3);
  CHECK(quantile(samples, 1) == 5);
  CHECK(quantile(samples, 0.1) == doctest::Approx(1.4));
  CHECK(quantile(samples, 0.9) == doctest::Approx(4.6));
  CHECK(quantile({2, 1}, 0.5) == 1.5);
  CHECK(quantile({7}, 0.9) == 7);
  CHECK_THROWS_AS(quantile({}, 0.5), std::invalid_argument);
}

TEST_CASE("a summary keeps the samples and is not moved by one outlier") {
  const Timing timing = summarize({1, 1, 1, 1, 1, 1, 1, 1, 1, 101}, 4);
  CHECK(timing.median_s == 1);
  CHECK(timing.min_s == 1);
  CHECK(timing.mean_s == doctest::Approx(11));
  CHECK(timing.p90_s == doctest::Approx(11));
  CHECK(timing.samples_s.size() == 10);
  CHECK(timing.launches_per_sample == 4);
}

TEST_CASE("samples last half a millisecond and there are at least ten") {
  CHECK(plan_samples(10e-6, 1).launches_per_sample == 50);
  CHECK(plan_samples(10e-6, 1).samples == kMostSamples);
  CHECK(plan_samples(3e-3, 1).launches_per_sample == 1);
  CHECK(plan_samples(3e-3, 1).samples == 333);
  CHECK(plan_samples(0.2, 1).samples == kLeastSamples);  // 2 s: more than the budget, but ten it is
  CHECK(plan_samples(0.31, 1).samples == kFewSamples);
  CHECK(plan_samples(15, 1).samples == kFewSamples);
  CHECK(plan_samples(15, 1).launches_per_sample == 1);
  CHECK(plan_samples(1e-3, 0).samples == kLeastSamples);
  CHECK(plan_samples(0, 1).launches_per_sample == 5000);  // below the clock's resolution: still a finite plan
}

TEST_CASE("numbers keep three digits") {
  CHECK(significant(0.012345) == "0.0123");
  CHECK(significant(1.2345) == "1.23");
  CHECK(significant(9.996) == "10.0");
  CHECK(significant(12.345) == "12.3");
  CHECK(significant(664.6) == "665");
  CHECK(significant(1234.5) == "1234");
  CHECK(significant(0) == "0");
  CHECK(time_text(3.214e-6) == "3.21 us");
  CHECK(time_text(1.234e-3) == "1.23 ms");
  CHECK(time_text(0.9996e-3) == "1.00 ms");
  CHECK(time_text(4.5) == "4.50 s");
}

TEST_CASE("tables align, and escape what Markdown would read as a column") {
  const Table table{{"name", "n"}, {false, true}, {{"a|b", "1"}, {"c", "100"}}};
  CHECK(table.aligned() == "name    n\na|b     1\nc     100\n");
  CHECK(table.markdown() == "| name | n |\n|---|--:|\n| a\\|b | 1 |\n| c | 100 |\n");
}

TEST_CASE("--seconds is split between reaching the regime and sampling") {
  CHECK(measure_options(Regime::kBurst, 2).regime == Regime::kBurst);
  CHECK(measure_options(Regime::kSustained, 2).soak_s == 1);
  CHECK(measure_options(Regime::kSustained, 2).sample_s == 1);
  CHECK(measure_options(Regime::kSustained, 0.5).soak_s == 0.25);
  CHECK(measure_options(Regime::kSustained, 10).sample_s == 9);
}
