// A small ladder and its results, made up: three rungs of topk on two cases, one forward.
#pragma once

#include "bench/ladder.hpp"

namespace dsa::bench {

inline constexpr const char* kSmallCase = "rows:4/n:100/topk:8";
inline constexpr const char* kOtherCase = "rows:8/n:100/topk:8";

inline RungEntry synthetic_rung(Stage stage, const char* name, const char* summary,
                                Device device = Device::kGpu) {
  return {stage, device, name, summary, Accuracy::kExact, true, "", nullptr, nullptr};
}

inline Registry synthetic_registry() {
  return {synthetic_rung(Stage::kTopk, "01_naive", "five reads", Device::kEmulator),
          synthetic_rung(Stage::kTopk, "01_naive", "five reads"),
          synthetic_rung(Stage::kTopk, "02_wide", "wide loads"),
          synthetic_rung(Stage::kTopk, "03_one_pass", "one read"),
          synthetic_rung(Stage::kTopk, "mine", "a reader's kernel"),
          synthetic_rung(Stage::kSparseMlaFwd, "01_naive", "one CTA per (query, head)")};
}

inline ResultRow synthetic_row(const std::string& name, double seconds, double bytes, double ratio) {
  Timing timing = summarize({seconds}, 1);
  timing.sm_clock_mhz = 1500;
  return make_row(name, {Unit::kBytes, bytes, bytes}, timing, bytes / seconds / ratio);
}

/// 01 takes 8 ms, 03 takes 2 ms on the small case; 02 does not support it. 01 takes 5 ms on the other case.
inline Results synthetic_results() {
  Results results;
  results.context = {{"gpu", "Test GPU"}, {"date", "2026-01-31T12:00:00+00:00"}};
  const std::string end = "/regime:sustained";
  const std::string small = std::string("/") + kSmallCase + end;
  results.put(synthetic_row("yardstick/copy/bytes:2147483648" + end, 1e-3, 4e9, 1));
  results.put(synthetic_row("topk/01_naive" + small, 8e-3, 4e9, 0.125));
  ResultRow unsupported;
  unsupported.name = "topk/02_wide" + small;
  unsupported.error = "unsupported: n must be a multiple of 128";
  results.put(unsupported);
  results.put(synthetic_row("topk/03_one_pass" + small, 2e-3, 4e9, 0.5));
  results.put(synthetic_row(std::string("topk/01_naive/") + kOtherCase + end, 5e-3, 4e9, 0.2));
  return results;
}

}  // namespace dsa::bench
