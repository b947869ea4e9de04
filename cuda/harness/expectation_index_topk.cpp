#include <algorithm>
#include <cmath>

#include "../../reference/index_topk.hpp"
#include "../../reference/indexer.hpp"
#include "../../reference/window.hpp"
#include "expectation.hpp"
#include "parallel.hpp"
#include "tolerance.hpp"

namespace dsa::harness {

IndexTopkExpectation::IndexTopkExpectation(const Problem& problem, int64_t n, uint64_t seed)
    : args_(std::get<IndexTopkArgs>(host_args(problem))) {
  const IndexerArgs indexer = reference::indexer_of(args_);
  const std::vector<double> keys = key_sizes(indexer);
  rows_.resize(std::size_t(n > 0 ? std::min<int64_t>(n, args_.s_q) : args_.s_q));
  const std::vector<int64_t> queries = sample(args_.s_q, n, seed);
  parallel_for(int64_t(rows_.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      ScoredWindow& row = rows_[std::size_t(i)];
      row.query = queries[std::size_t(i)];
      const reference::Window window =
          reference::clamp_window(args_.ks[row.query], args_.ke[row.query], args_.s_kv);
      row.begin = window.begin, row.end = std::max(window.begin, window.end);
      if (row.end - row.begin <= args_.topk) continue;
      const reference::RowVector logits = reference::indexer_row(indexer, row.query);
      row.logits.assign(logits.begin() + row.begin, logits.begin() + row.end);
      const double size = query_size(indexer, row.query);
      for (int64_t j = row.begin; j < row.end; ++j) row.scale.push_back(size * keys[std::size_t(j)]);
    }
  });
}

/// "" or what is wrong with one row. Logits may be off by `bound` times the size of their summands: the row is right if there
/// are such logits of which it is the selection.
std::string IndexTopkExpectation::row_error(const ScoredWindow& row, const int32_t* columns, double bound) const {
  const auto slot_text = [&](int64_t slot) {
    return "indices[query " + std::to_string(row.query) + ", slot " + std::to_string(slot) + "] = " +
           std::to_string(columns[slot]);
  };
  const std::string window_text = "[" + std::to_string(row.begin) + ", " + std::to_string(row.end) + ")";
  const bool whole = row.logits.empty();
  std::vector<char> selected(std::size_t(row.end - row.begin));
  int64_t count = 0;
  while (count < args_.topk && columns[count] != kInvalid) {
    const int64_t column = columns[count];
    if (column < row.begin || column >= row.end) return slot_text(count) + " is outside of the window " + window_text;
    if (selected[std::size_t(column - row.begin)]++) return slot_text(count) + " was selected before";
    if (args_.deterministic && count > 0 && column < columns[count - 1])
      return slot_text(count) + " is not behind the column before it: the deterministic mode sorts";
    ++count;
  }
  for (int64_t slot = count; slot < args_.topk; ++slot) {
    if (columns[slot] != kInvalid) return slot_text(slot) + " stands behind the end, a -1 in slot " + std::to_string(count);
  }
  if (whole) {
    if (count == row.end - row.begin) return "";
    return "query " + std::to_string(row.query) + ": " + std::to_string(count) + " columns selected of the window " +
           window_text + ", which has at most topk and is selected whole";
  }

  // The largest value that an unselected column has at least, the smallest that a selected one has at most.
  double left_out = -HUGE_VAL, taken = HUGE_VAL;
  int64_t left_out_column = -1, taken_column = -1, selectable = 0;
  for (std::size_t j = 0; j < row.logits.size(); ++j) {
    const double logit = row.logits[j], slack = bound * row.scale[j];
    const bool valid = logit > -HUGE_VAL;          // not NaN either
    selectable += valid;
    if (selected[j] && !valid)
      return "query " + std::to_string(row.query) + ": column " + std::to_string(row.begin + int64_t(j)) +
             " is selected, whose logit is NaN or -inf";
    if (selected[j] && logit + slack < taken) taken = logit + slack, taken_column = row.begin + int64_t(j);
    if (!selected[j] && valid && logit - slack > left_out)
      left_out = logit - slack, left_out_column = row.begin + int64_t(j);
  }
  if (count != std::min<int64_t>(args_.topk, selectable))
    return "query " + std::to_string(row.query) + ": " + std::to_string(count) + " columns selected, should be " +
           std::to_string(std::min<int64_t>(args_.topk, selectable));
  if (left_out > taken)
    return "query " + std::to_string(row.query) + ": column " + std::to_string(left_out_column) + " (logit " +
           std::to_string(row.logits[std::size_t(left_out_column - row.begin)]) + ") is left out, column " +
           std::to_string(taken_column) + " (logit " +
           std::to_string(row.logits[std::size_t(taken_column - row.begin)]) + ") is selected";
  return "";
}

Verdict IndexTopkExpectation::judge(const Tensor& indices, Accuracy accuracy) const {
  const std::vector<int64_t> shape{args_.s_q, args_.topk};
  if (indices.shape != shape || indices.dtype != DType::kI32)
    return {false, "indices: shape " + shape_text(indices.shape) + ", expected " + shape_text(shape)};
  const double bound = accuracy == Accuracy::kF32 ? kIndexerBoundF32 : kIndexerBoundFp8;
  std::string first;
  int64_t wrong = 0;
  for (const ScoredWindow& row : rows_) {
    const std::string error = row_error(row, indices.data<int32_t>() + row.query * args_.topk, bound);
    if (!error.empty() && ++wrong <= 5) first += "\n" + error;
  }
  if (wrong == 0) return {};
  return {false, "indices: " + std::to_string(wrong) + " of " + std::to_string(rows_.size()) + " rows are wrong" + first};
}

}  // namespace dsa::harness
