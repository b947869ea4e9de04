/// @file topk.hpp
/// The top-k selector: from each row of indexer logits the columns of its `topk` largest values.
///
/// A column is a candidate iff it lies in [ks, ke) and its logit is neither NaN nor -inf; +inf is a
/// candidate. Candidates are ranked by value; -0 equals +0. A row with fewer than `topk` candidates ends in
/// -1.
///
/// Which columns of a tie at the threshold are taken, and the order within a row, are free in the default
/// mode. This reference always takes the lowest columns; it lists them by descending value in the default
/// mode and by ascending column in the deterministic mode.
#pragma once

#include <vector>

#include "contracts.hpp"

namespace dsa::reference {

/// Selected columns of one row: exactly `topk` entries, -1 after the last column.
std::vector<int32_t> topk_row(const TopkArgs& args, int64_t row);

/// All rows: writes args.indices [rows, topk].
void topk(const TopkArgs& args);

}  // namespace dsa::reference
