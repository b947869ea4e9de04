#include "row_text.hpp"

#include "text.hpp"

namespace dsa::bench {

std::string rate_text(double rate, Unit unit) {
  if (unit == Unit::kFlop) return significant(rate * 1e-12) + " TFLOP/s";
  return significant(rate * 1e-9) + " GB/s";
}

std::optional<Rate> rate_of(const ResultRow& row) {
  if (const auto flop = row.counter("flop_per_s")) return Rate{*flop, Unit::kFlop};
  if (const auto bytes = row.counter("bytes_per_s")) return Rate{*bytes, Unit::kBytes};
  return std::nullopt;
}

std::string row_text(const ResultRow& row) {
  std::string line = text("%-92s  ", row.name.c_str());
  if (!row.error.empty()) return line + row.error;
  line += text("%9s", time_text(row.counter("median_s").value_or(row.mean_s)).c_str());
  const auto p10 = row.counter("p10_s"), p90 = row.counter("p90_s");
  if (p10 && p90) line += " (" + time_text(*p10) + " to " + time_text(*p90) + ")";
  if (const auto rate = rate_of(row)) line += "  " + rate_text(rate->per_s, rate->unit);
  if (const auto ratio = row.counter("yardstick_ratio")) line += text("  %.1f %% of yardstick", 100 * *ratio);
  if (const auto clock = row.counter("sm_clock_mhz")) line += text("  %.0f MHz", *clock);
  if (const auto power = row.counter("power_w")) line += text("  %.0f W", *power);
  return line;
}

}  // namespace dsa::bench
