// The ladder made from a registry and results.
#include <doctest/doctest.h>

#include "synthetic.hpp"

using namespace dsa;
using namespace dsa::bench;

TEST_CASE("every numbered rung is listed, measured or not") {
  const Ladder ladder =
      make_ladder(synthetic_results(), synthetic_registry(), Stage::kTopk, kSmallCase, "sustained");
  REQUIRE(ladder.rows.size() == 3);  // a rung of two devices is one row; "mine" was not measured
  CHECK(ladder.rows[0].rung == "01_naive");
  CHECK(ladder.rows[0].summary == "five reads");
  CHECK(ladder.rows[0].seconds.value() == 8e-3);
  CHECK_FALSE(ladder.rows[0].gain.has_value());
  CHECK_FALSE(ladder.rows[1].seconds.has_value());
  CHECK(ladder.rows[1].note == "unsupported: n must be a multiple of 128");
  CHECK(ladder.rows[2].rate.value() == doctest::Approx(2e12));
  CHECK(ladder.rows[2].ratio.value() == doctest::Approx(0.5));
  CHECK(ladder.rows[2].gain.value() == doctest::Approx(4));  // over 01, the measured rung before
  CHECK(ladder.yardstick_rate.value() == doctest::Approx(4e12));
  CHECK(ladder.best() == &ladder.rows[2]);
  CHECK(ladder.first() == &ladder.rows[0]);
}

TEST_CASE("rungs without a row are 'not measured'") {
  const Ladder ladder =
      make_ladder(synthetic_results(), synthetic_registry(), Stage::kTopk, kOtherCase, "sustained");
  CHECK(ladder.rows[1].note == "not measured");
  CHECK(ladder.rows[2].note == "not measured");
  CHECK(ladder_text(ladder).find("not measured") != std::string::npos);
  const Ladder burst =
      make_ladder(synthetic_results(), synthetic_registry(), Stage::kTopk, kSmallCase, "burst");
  CHECK(burst.best() == nullptr);
  CHECK(burst.rows[0].note == "not measured");
}

TEST_CASE("a reader's kernel appears once it is measured") {
  Results results = synthetic_results();
  results.put(synthetic_row(std::string("topk/mine/") + kSmallCase + "/regime:sustained", 1e-3, 4e9, 0.99));
  const Ladder ladder = make_ladder(results, synthetic_registry(), Stage::kTopk, kSmallCase, "sustained");
  REQUIRE(ladder.rows.size() == 4);
  CHECK(ladder.rows[3].rung == "mine");
  CHECK(ladder.rows[3].gain.value() == doctest::Approx(2));
}

TEST_CASE("one ladder per case and regime") {
  Results results = synthetic_results();
  CHECK(ladders_of(results, synthetic_registry(), Stage::kTopk).size() == 2);
  CHECK(ladders_of(results, synthetic_registry(), Stage::kIndexer).empty());
  results.put(synthetic_row(std::string("topk/01_naive/") + kSmallCase + "/regime:burst", 1e-3, 4e9, 0.9));
  results.put(
      synthetic_row(std::string("topk/01_naive/") + kSmallCase + "/regime:burst/warm:1", 1e-3, 4e9, 1.5));
  const std::vector<Ladder> ladders = ladders_of(results, synthetic_registry(), Stage::kTopk);
  REQUIRE(ladders.size() == 4);
  CHECK(ladders[2].regime == "burst");
  CHECK_FALSE(ladders[2].warm);
  CHECK(ladders[3].warm);
}

TEST_CASE("the table says time, rate, share, gain, how work is counted, and on what") {
  const Ladder ladder =
      make_ladder(synthetic_results(), synthetic_registry(), Stage::kTopk, kSmallCase, "sustained");
  const std::string expected =
      "**topk**: rows 4, n 100, topk 8, sustained\n"
      "\n"
      "| rung | what it does | time | GB/s | % of copy | x over the rung before |\n"
      "|---|---|--:|--:|--:|--:|\n"
      "| 01_naive | five reads | 8.00 ms | 500 | 12.5 % |  |\n"
      "| 02_wide | wide loads (n must be a multiple of 128) | unsupported |  |  |  |\n"
      "| 03_one_pass | one read | 2.00 ms | 2000 | 50.0 % | 4.00 |\n"
      "\n"
      "Bytes: one read of every window, 4 sum(ke - ks), whatever a kernel really reads; the copy counts read "
      "and "
      "write. Yardstick: copy, 4000 GB/s; measured again around every rung. Median times. Test GPU, "
      "2026-01-31, "
      "SM clock 1500 MHz.\n";
  CHECK(ladder_markdown(ladder) == expected);
}

TEST_CASE("the summary takes the first case of the results, and has a line for every stage") {
  const std::string summary = summary_markdown(synthetic_results(), synthetic_registry());
  CHECK(
      summary.find("| topk | rows 4, n 100, topk 8 | 01_naive: 8.00 ms | 03_one_pass: 2.00 ms | 2000 GB/s | "
                   "50.0 % of copy | 4.00 |") != std::string::npos);
  CHECK(summary.find("| sparse_mla_fwd |  | not measured |") != std::string::npos);
  CHECK(summary.find("Test GPU, 2026-01-31") != std::string::npos);
}
