/// @file results.hpp
/// Measurements as they are kept: Google Benchmark's JSON, names `stage/rung/key:value/.../regime:sustained`.
///
///     {"context": {"date": "...", "gpu": "NVIDIA H200", ...},
///      "benchmarks": [{"name": "topk/01_naive/rows:4096/n:32768/topk:2048/regime:sustained",
///                      "real_time": 1.25, "time_unit": "ms", "bytes_per_s": 4.3e11, ...}]}
///
/// Rates are plain numbers in units per second; `yardstick_ratio` is the rate over the yardstick's.
#pragma once

#include <filesystem>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "timing.hpp"
#include "work.hpp"

namespace dsa::bench {

/// The parts of a row's name.
struct ResultName {
  std::string stage;  ///< of a rung, or "yardstick", or "pipeline"
  std::string rung;
  std::string case_name;  ///< "s_q:4096/s_kv:8192/h_q:128/topk:2048"
  std::string regime;     ///< "burst", "sustained", or empty
  bool warm = false;
};
std::string result_name(const ResultName& parts);
/// Ignores what Google Benchmark appends ("iterations:1", "manual_time"); nullopt if there is no rung.
std::optional<ResultName> parse_result_name(const std::string& name);

/// The stage of that name; throws harness::BadInput that lists the known ones.
Stage stage_by_name(const std::string& name);

/// One measurement, or why there is none.
struct ResultRow {
  std::string name;
  int64_t iterations = 0;                  ///< samples
  double mean_s = 0;                       ///< of one launch, seconds
  std::map<std::string, double> counters;  ///< "median_s", "flop_per_s", "yardstick_ratio", ...
  std::string error;                       ///< not measured, and why; empty when measured

  std::optional<double> counter(const std::string& key) const;
};

struct Results {
  std::map<std::string, std::string> context;  ///< GPU, driver, date, ...
  std::vector<ResultRow> rows;

  const ResultRow* find(const std::string& name) const;
  /// Adds a row, or replaces the one of the same name where it stands.
  void put(ResultRow row);
};

/// Reads a file of ours or of Google Benchmark. Throws harness::BadInput that names the file.
Results read_results(const std::filesystem::path& path);

/// Writes under a temporary name and renames. Throws harness::BadInput when the file cannot be written.
void write_results(const std::filesystem::path& path, const Results& results);

/// A row from a measurement.
/// @param yardstick_rate FLOP/s or bytes/s of the yardstick in the same regime; nullopt leaves the ratio out
ResultRow make_row(const std::string& name, const Work& work, const Timing& timing,
                   std::optional<double> yardstick_rate);

}  // namespace dsa::bench
