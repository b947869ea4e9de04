#include "index_topk.hpp"

#include <algorithm>
#include <numeric>

#include "indexer.hpp"
#include "topk.hpp"
#include "window.hpp"

namespace dsa::reference {

IndexerArgs indexer_of(const IndexTopkArgs& args) {
  IndexerArgs indexer;
  indexer.s_q = args.s_q, indexer.s_kv = args.s_kv, indexer.h_i = args.h_i, indexer.d_i = args.d_i;
  indexer.q = args.q, indexer.k = args.k, indexer.k_scale = args.k_scale, indexer.weights = args.weights;
  indexer.ks = args.ks, indexer.ke = args.ke;
  return indexer;
}

std::vector<int32_t> index_topk_row(const IndexTopkArgs& args, int64_t query) {
  const Window window = clamp_window(args.ks[query], args.ke[query], args.s_kv);
  if (window.end - window.begin <= args.topk) {
    std::vector<int32_t> columns(std::size_t(args.topk), kInvalid);
    std::iota(columns.begin(), columns.begin() + std::max<int64_t>(0, window.end - window.begin), int32_t(window.begin));
    return columns;
  }
  const RowVector exact = indexer_row(indexer_of(args), query);
  const std::vector<float> logits(exact.begin(), exact.end());
  TopkArgs topk;
  topk.rows = 1, topk.n = args.s_kv, topk.topk = args.topk, topk.deterministic = args.deterministic;
  topk.logits = logits.data();
  topk.ks = args.ks + query, topk.ke = args.ke + query;
  return topk_row(topk, 0);
}

void index_topk(const IndexTopkArgs& args) {
  for (int64_t query = 0; query < args.s_q; ++query) {
    const std::vector<int32_t> columns = index_topk_row(args, query);
    std::copy(columns.begin(), columns.end(), args.indices + query * args.topk);
  }
}

}  // namespace dsa::reference
