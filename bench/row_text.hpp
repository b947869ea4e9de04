/// @file row_text.hpp
/// One measurement as one line for the terminal.
#pragma once

#include <string>

#include "results.hpp"

namespace dsa::bench {

/// "665 TFLOP/s" or "3920 GB/s", from FLOP/s or bytes/s.
std::string rate_text(double rate, Unit unit);

/// The rate of a row and its unit; nullopt if it has none.
struct Rate {
  double per_s;
  Unit unit;
};
std::optional<Rate> rate_of(const ResultRow& row);

/// "NAME  1.23 ms (1.22 ms to 1.25 ms)  665 TFLOP/s  86.0 % of yardstick  1500 MHz  690 W", or why not.
std::string row_text(const ResultRow& row);

}  // namespace dsa::bench
