/// @file index_topk.hpp
/// Lightning indexer and top-k selector in one step: what a serving engine calls for every layer.
///
/// A row's logits are those of indexer.hpp, rounded to float32, and the columns those of topk.hpp. One thing differs: a
/// window of at most `topk` columns is selected whole, by rising column, even where a logit is NaN or -inf. Whatever is
/// selected, the attention sees all of such a window, so its scores need not be known.
#pragma once

#include <vector>

#include "contracts.hpp"

namespace dsa::reference {

/// Selected columns of one query: exactly `topk` entries, -1 after the last column.
std::vector<int32_t> index_topk_row(const IndexTopkArgs& args, int64_t query);

/// All queries: writes args.indices [s_q, topk]. The scratch is not touched.
void index_topk(const IndexTopkArgs& args);

/// The scoring half, as arguments of the indexer.
IndexerArgs indexer_of(const IndexTopkArgs& args);

}  // namespace dsa::reference
