/// @file text.hpp
/// Numbers and tables as text, for the terminal and for Markdown.
#pragma once

#include <string>
#include <vector>

namespace dsa::bench {

/// std::snprintf into a string of the length that it needs.
[[gnu::format(printf, 1, 2)]] std::string text(const char* format, ...);

/// `value` with at least three significant digits and no exponent: "0.0123", "1.23", "12.3", "1234".
std::string significant(double value);

/// "3.21 us", "1.23 ms", "4.56 s".
std::string time_text(double seconds);

/// Rows of cells; all rows are as long as `header`.
struct Table {
  std::vector<std::string> header;
  std::vector<bool> right;  ///< per column: numbers are set flush right
  std::vector<std::vector<std::string>> rows;

  /// Columns padded with spaces, one line per row, no trailing blanks.
  std::string aligned() const;
  /// A GitHub table. A '|' inside a cell is escaped.
  std::string markdown() const;
};

}  // namespace dsa::bench
