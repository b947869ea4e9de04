#include "results.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "../cuda/harness/tensor.hpp"

namespace dsa::bench {

using harness::BadInput;
using json = nlohmann::ordered_json;  // keeps "name" first, as Google Benchmark has it

namespace {

/// The fields of a benchmark that are not counters.
constexpr const char* kPlainFields[] = {"family_index", "per_family_instance_index",
                                        "repetitions",  "repetition_index",
                                        "threads",      "iterations",
                                        "real_time",    "cpu_time"};

bool is_counter(const std::string& key, const json& value) {
  return value.is_number() &&
         std::find(std::begin(kPlainFields), std::end(kPlainFields), key) == std::end(kPlainFields);
}

double unit_seconds(const std::string& unit) {
  if (unit == "ns") return 1e-9;
  if (unit == "us") return 1e-6;
  if (unit == "ms") return 1e-3;
  if (unit == "s") return 1;
  throw BadInput("unknown time_unit '" + unit + "'");
}

bool starts_with(const std::string& whole, const std::string& start) {
  return whole.rfind(start, 0) == 0;
}

ResultRow row_from(const json& entry) {
  ResultRow row;
  row.name = entry.at("name").get<std::string>();
  if (entry.value("error_occurred", false)) {
    row.error = entry.value("error_message", std::string("not measured"));
    return row;
  }
  row.iterations = entry.value("iterations", int64_t(0));
  row.mean_s =
      entry.at("real_time").get<double>() * unit_seconds(entry.value("time_unit", std::string("ns")));
  for (const auto& [key, value] : entry.items()) {
    if (is_counter(key, value)) row.counters[key] = value.get<double>();
  }
  return row;
}

json to_json(const ResultRow& row) {
  json entry = {{"name", row.name}, {"run_name", row.name}, {"run_type", "iteration"}};
  if (!row.error.empty()) {
    entry["error_occurred"] = true;
    entry["error_message"] = row.error;
  }
  // Manual time: the processor's time says nothing about a GPU, and compare.py wants both.
  entry["iterations"] = row.iterations;
  entry["real_time"] = row.mean_s * 1e3;
  entry["cpu_time"] = row.mean_s * 1e3;
  entry["time_unit"] = "ms";
  for (const auto& [key, value] : row.counters) {
    if (std::isfinite(value)) entry[key] = value;
  }
  return entry;
}

}  // namespace

Stage stage_by_name(const std::string& name) {
  std::string known;
  for (Stage stage : kStages) {
    if (name == stage_name(stage)) return stage;
    known += (known.empty() ? "" : ", ") + std::string(stage_name(stage));
  }
  throw BadInput("unknown stage '" + name + "' (known: " + known + ")");
}

std::string result_name(const ResultName& parts) {
  std::string name = parts.stage + "/" + parts.rung;
  if (!parts.case_name.empty()) name += "/" + parts.case_name;
  if (!parts.regime.empty()) name += "/regime:" + parts.regime;
  if (parts.warm) name += "/warm:1";
  return name;
}

std::optional<ResultName> parse_result_name(const std::string& name) {
  std::istringstream stream(name);
  ResultName parts;
  if (!std::getline(stream, parts.stage, '/') || !std::getline(stream, parts.rung, '/')) return std::nullopt;
  for (std::string part; std::getline(stream, part, '/');) {
    if (starts_with(part, "regime:")) {
      parts.regime = part.substr(part.find(':') + 1);
    } else if (part == "warm:1") {
      parts.warm = true;
    } else if (part != "manual_time" && !starts_with(part, "iterations:") && !starts_with(part, "repeats:")) {
      parts.case_name += (parts.case_name.empty() ? "" : "/") + part;
    }
  }
  return parts;
}

std::optional<double> ResultRow::counter(const std::string& key) const {
  const auto found = counters.find(key);
  return found == counters.end() ? std::nullopt : std::optional(found->second);
}

const ResultRow* Results::find(const std::string& name) const {
  const auto found =
      std::find_if(rows.begin(), rows.end(), [&](const ResultRow& r) { return r.name == name; });
  return found == rows.end() ? nullptr : &*found;
}

void Results::put(ResultRow row) {
  for (ResultRow& old : rows) {
    if (old.name == row.name) {
      old = std::move(row);
      return;
    }
  }
  rows.push_back(std::move(row));
}

Results read_results(const std::filesystem::path& path) {
  std::ifstream stream(path);
  if (!stream) throw BadInput(path.string() + ": cannot be opened");
  try {
    const json file = json::parse(stream);
    Results results;
    for (const auto& [key, value] : file.at("context").items()) {
      results.context[key] = value.is_string() ? value.get<std::string>() : value.dump();
    }
    for (const json& entry : file.at("benchmarks")) {
      if (entry.value("run_type", std::string("iteration")) == "iteration") results.put(row_from(entry));
    }
    return results;
  } catch (const std::exception& error) {
    throw BadInput(path.string() + ": not a results file of Google Benchmark: " + error.what());
  }
}

void write_results(const std::filesystem::path& path, const Results& results) {
  json file = {{"context", results.context}, {"benchmarks", json::array()}};
  for (const ResultRow& row : results.rows) file["benchmarks"].push_back(to_json(row));
  std::filesystem::path partial = path;
  partial += ".partial";
  std::ofstream stream(partial, std::ios::trunc);
  stream << file.dump(1, ' ', false, json::error_handler_t::replace) << "\n";
  stream.close();
  std::error_code error;
  if (stream) std::filesystem::rename(partial, path, error);
  if (!stream || error) throw BadInput(path.string() + ": cannot be written");
}

ResultRow make_row(const std::string& name, const Work& work, const Timing& timing,
                   std::optional<double> yardstick_rate) {
  const bool flop = work.unit == Unit::kFlop;
  const double rate = work.amount / timing.median_s;
  ResultRow row;
  row.name = name;
  row.iterations = int64_t(timing.samples_s.size());
  row.mean_s = timing.mean_s;
  row.counters = {{"median_s", timing.median_s},
                  {"min_s", timing.min_s},
                  {"p10_s", timing.p10_s},
                  {"p90_s", timing.p90_s},
                  {"launches_per_sample", timing.launches_per_sample},
                  {flop ? "flop" : "bytes", work.amount},
                  {flop ? "flop_per_s" : "bytes_per_s", rate}};
  if (work.valid_amount != work.amount) {
    row.counters["flop_valid"] = work.valid_amount;
    row.counters["flop_valid_per_s"] = work.valid_amount / timing.median_s;
  }
  if (yardstick_rate) row.counters["yardstick_ratio"] = rate / *yardstick_rate;
  if (timing.sm_clock_mhz) row.counters["sm_clock_mhz"] = *timing.sm_clock_mhz;
  if (timing.power_w) row.counters["power_w"] = *timing.power_w;
  return row;
}

}  // namespace dsa::bench
