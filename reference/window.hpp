/// @file window.hpp
/// The half-open window of columns that the indexer fills and the top-k selector searches.
#pragma once

#include <algorithm>
#include <cstdint>

namespace dsa::reference {

/// Columns [begin, end) of a row; never reversed, so `end - begin` is the number of columns.
struct Window {
  int begin;
  int end;
};

/// Clamps [ks, ke) to [0, n). ke <= ks gives an empty window.
inline Window clamp_window(int32_t ks, int32_t ke, int n) {
  const int begin = std::clamp(ks, 0, n);
  return {begin, std::max(begin, std::clamp(ke, 0, n))};
}

}  // namespace dsa::reference
