#include <algorithm>
#include <cmath>

#include "../../reference/topk.hpp"
#include "../../reference/window.hpp"
#include "expectation.hpp"
#include "parallel.hpp"

namespace dsa::harness {

namespace {

std::string text(float value) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.9g", double(value));
  return buffer;
}

}  // namespace

TopkExpectation::TopkExpectation(const Problem& problem, int64_t n, uint64_t seed)
    : problem_(problem), args_(std::get<TopkArgs>(host_args(problem))), rows_(sample(args_.rows, n, seed)) {
  values_.resize(rows_.size());
  if (args_.deterministic) exact_.resize(rows_.size());
  parallel_for(int64_t(rows_.size()), 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const std::vector<int32_t> columns = reference::topk_row(args_, rows_[std::size_t(i)]);
      const float* logits = args_.logits + rows_[std::size_t(i)] * args_.logits_stride;
      std::vector<float>& values = values_[std::size_t(i)];
      for (int32_t column : columns) {
        if (column >= 0) values.push_back(logits[column]);
      }
      std::sort(values.begin(), values.end(), std::greater<>());
      if (args_.deterministic) exact_[std::size_t(i)] = columns;
    }
  });
}

TopkExpectation::TopkExpectation(const Problem& problem, const TensorMap& want, const std::string& source)
    : problem_(problem), args_(std::get<TopkArgs>(host_args(problem))), rows_(sample(args_.rows, 0, 0)) {
  const auto need = [&](const char* name, DType dtype, std::vector<int64_t> shape) -> const Tensor& {
    const auto found = want.find(name);
    if (found == want.end()) throw BadInput(source + ": tensor '" + name + "' is missing");
    if (found->second.dtype != dtype || found->second.shape != shape) {
      throw BadInput(source + ": tensor '" + name + "': expected " + dtype_name(dtype) + " of shape " +
                     shape_text(shape) + ", got " + dtype_name(found->second.dtype) + " of shape " +
                     shape_text(found->second.shape));
    }
    return found->second;
  };
  const Tensor& values = need("want_values_desc", DType::kF32, {args_.rows, args_.topk});
  const Tensor& counts = need("want_count", DType::kI32, {args_.rows});
  for (int64_t i = 0; i < args_.rows; ++i) {
    const int32_t count = counts.data<int32_t>()[i];
    if (count < 0 || count > args_.topk) {
      throw BadInput(source + ": tensor 'want_count': " + std::to_string(count) + " is not in [0, topk]");
    }
    const float* first = values.data<float>() + i * args_.topk;
    values_.emplace_back(first, first + count);
  }
}

/// "" or what is wrong with one row.
std::string TopkExpectation::row_error(int64_t at, const int32_t* columns) const {
  const int64_t row = rows_[std::size_t(at)];
  const std::vector<float>& want = values_[std::size_t(at)];
  const float* logits = args_.logits + row * args_.logits_stride;
  const reference::Window window = reference::clamp_window(args_.ks[row], args_.ke[row], args_.n);
  const auto slot_text = [&](int64_t slot) {
    return "indices[row " + std::to_string(row) + ", slot " + std::to_string(slot) +
           "] = " + std::to_string(columns[slot]);
  };

  std::vector<std::pair<int32_t, int64_t>> seen;  // column, slot
  std::vector<float> got;
  for (int64_t slot = 0; slot < args_.topk; ++slot) {
    const int32_t column = columns[slot];
    if (slot >= int64_t(want.size())) {
      if (column != kInvalid) {
        return slot_text(slot) + ", expected -1: only " + std::to_string(want.size()) +
               " columns are selectable";
      }
      continue;
    }
    if (column == kInvalid) {
      return slot_text(slot) + ", but " + std::to_string(want.size()) + " columns are selectable";
    }
    if (column < window.begin || column >= window.end) {
      return slot_text(slot) + " is outside the window [" + std::to_string(window.begin) + ", " +
             std::to_string(window.end) + ")";
    }
    if (!(logits[column] > -INFINITY)) return slot_text(slot) + " selects " + text(logits[column]);
    seen.emplace_back(column, slot);
    got.push_back(logits[column]);
  }

  std::sort(seen.begin(), seen.end());
  for (std::size_t i = 1; i < seen.size(); ++i) {
    if (seen[i].first == seen[i - 1].first) {
      return slot_text(seen[i].second) + " was selected before, in slot " +
             std::to_string(seen[i - 1].second);
    }
  }
  std::sort(got.begin(), got.end(), std::greater<>());
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (got[i] != want[i]) {
      return "row " + std::to_string(row) + ": number " + std::to_string(i + 1) +
             " of its selected values is " + text(got[i]) + ", should be " + text(want[i]);
    }
  }
  if (!exact_.empty()) {
    const std::vector<int32_t>& exact = exact_[std::size_t(at)];
    const auto [wrong, should] = std::mismatch(columns, columns + args_.topk, exact.begin());
    if (should != exact.end()) {
      return slot_text(wrong - columns) + ", the deterministic mode selects " + std::to_string(*should) +
             " there";
    }
  }
  return "";
}

Verdict TopkExpectation::judge(const Tensor& indices) const {
  const std::vector<int64_t> shape{args_.rows, args_.topk};
  if (indices.shape != shape || indices.dtype != DType::kI32) {
    return {false, "indices: shape " + shape_text(indices.shape) + ", expected " + shape_text(shape)};
  }
  std::vector<std::string> errors(rows_.size());
  parallel_for(int64_t(rows_.size()), 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      errors[std::size_t(i)] = row_error(i, indices.data<int32_t>() + rows_[std::size_t(i)] * args_.topk);
    }
  });
  constexpr std::size_t kShown = 5;
  std::size_t wrong = 0;
  std::string first;
  for (const std::string& error : errors) {
    if (!error.empty() && ++wrong <= kShown) first += "\n" + error;
  }
  if (wrong == 0) return {};
  return {false, "indices: " + std::to_string(wrong) + " of " + std::to_string(rows_.size()) +
                     " rows are wrong" + first};
}

}  // namespace dsa::harness
