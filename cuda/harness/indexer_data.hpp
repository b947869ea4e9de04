/// @file indexer_data.hpp
/// Scores to be made, shared by the cases of indexer and of index_topk.
#pragma once

#include "generate.hpp"

namespace dsa::harness {

/// [ks, ke) of a query, unclamped.
using Window = std::function<std::pair<int32_t, int32_t>(int64_t query)>;

/// Every query sees every key.
Window whole(int s_kv);
/// The last s_q of s_kv tokens, each seeing itself and what came before.
Window suffix(int s_q, int s_kv);

/// q, k, k_scale, weights, ks and ke. Every row has another scale, none a power of two; weights are of either sign.
TensorMap scoring_inputs(int s_q, int s_kv, int h_i, int d_i, uint64_t seed, const Window& window);

}  // namespace dsa::harness
