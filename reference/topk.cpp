#include "topk.hpp"

#include <algorithm>
#include <limits>

#include "window.hpp"

namespace dsa::reference {

std::vector<int32_t> topk_row(const TopkArgs& args, int64_t row) {
  const float* logits = args.logits + row * args.logits_stride;
  const Window window = clamp_window(args.ks[row], args.ke[row], args.n);

  std::vector<int32_t> columns;
  for (int32_t j = window.begin; j < window.end; ++j) {
    if (logits[j] > -std::numeric_limits<float>::infinity()) columns.push_back(j);  // false for NaN
  }

  const auto ranks_before = [&](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  const int64_t selected = std::min<int64_t>(args.topk, columns.size());
  std::partial_sort(columns.begin(), columns.begin() + selected, columns.end(), ranks_before);
  columns.resize(selected);
  if (args.deterministic) std::sort(columns.begin(), columns.end());

  columns.resize(args.topk, kInvalid);
  return columns;
}

void topk(const TopkArgs& args) {
  for (int64_t i = 0; i < args.rows; ++i) {
    const std::vector<int32_t> columns = topk_row(args, i);
    std::copy(columns.begin(), columns.end(), args.indices + i * args.topk);
  }
}

}  // namespace dsa::reference
