#include "text.hpp"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>

namespace dsa::bench {

std::string text(const char* format, ...) {
  va_list arguments, again;
  va_start(arguments, format);
  va_copy(again, arguments);
  const int length = std::vsnprintf(nullptr, 0, format, arguments);
  va_end(arguments);
  std::string result(std::size_t(std::max(length, 0)), '\0');
  std::vsnprintf(result.data(), result.size() + 1, format, again);
  va_end(again);
  return result;
}

std::string significant(double value) {
  constexpr int kDigits = 3;
  if (value == 0 || !std::isfinite(value)) return text("%g", value);
  // The exponent after rounding to three digits: 9.996 counts as 10.0.
  const std::string rounded = text("%.*e", kDigits - 1, value);
  const int exponent = std::stoi(rounded.substr(rounded.find('e') + 1));
  return text("%.*f", std::max(0, kDigits - 1 - exponent), value);
}

std::string time_text(double seconds) {
  if (seconds < 0.9995e-3) return significant(seconds * 1e6) + " us";
  if (seconds < 0.9995) return significant(seconds * 1e3) + " ms";
  return significant(seconds) + " s";
}

std::string Table::aligned() const {
  std::vector<std::size_t> width(header.size());
  const auto widen = [&](const std::vector<std::string>& row) {
    for (std::size_t c = 0; c < width.size(); ++c) width[c] = std::max(width[c], row.at(c).size());
  };
  widen(header);
  for (const auto& row : rows) widen(row);

  std::string result;
  const auto add = [&](const std::vector<std::string>& row) {
    std::string line;
    for (std::size_t c = 0; c < width.size(); ++c) {
      const std::string padding(width[c] - row[c].size(), ' ');
      line += c == 0 ? "" : "  ";
      line += right.at(c) ? padding + row[c] : row[c] + padding;
    }
    result += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  };
  add(header);
  for (const auto& row : rows) add(row);
  return result;
}

std::string Table::markdown() const {
  std::string result;
  const auto add = [&](const std::vector<std::string>& row) {
    result += "|";
    for (const std::string& cell : row) {
      result += " ";
      for (char c : cell) result += c == '|' ? "\\|" : std::string(1, c);
      result += " |";
    }
    result += "\n";
  };
  add(header);
  result += "|";
  for (std::size_t c = 0; c < header.size(); ++c) result += right.at(c) ? "--:|" : "---|";
  result += "\n";
  for (const auto& row : rows) add(row);
  return result;
}

}  // namespace dsa::bench
