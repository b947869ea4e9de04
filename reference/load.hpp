/// @file load.hpp
/// Rows of bf16 and e4m3 tensors as float64 matrices. FP8 rows come back dequantised, so that nothing after
/// loading needs to know which of the two formats it was.
#pragma once

#include <vector>

#include "contracts.hpp"
#include "types.hpp"

namespace dsa::reference {

/// Value of an e4m3 byte. Exact.
double decode(e4m3 byte);

/// Rows [first, first + count) of a tensor [..., width], as [count, width]. Exact.
Matrix load_rows(const bf16* tensor, int64_t first, int64_t count, int width);
Matrix load_rows(const e4m3* tensor, int64_t first, int64_t count, int width);

/// The query vectors of `query` in batch element `batch` whose heads read KV group `group`: [h_q / g, 576].
/// FP8 vectors are multiplied by their q_scale.
Matrix load_query(const SparseMlaFwdArgs& args, int64_t batch, int64_t query, int64_t group);

/// The named KV rows of one group, in the order given: [rows.size(), 576]. FP8 rows are multiplied by their
/// kv_scale. Columns 0..511 are also the values V.
/// Precondition: every row is in [0, s_kv); see selected.hpp.
Matrix load_kv(const SparseMlaFwdArgs& args, int64_t batch, int64_t group, const std::vector<int64_t>& rows);

}  // namespace dsa::reference
