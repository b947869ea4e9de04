#include "indexer.hpp"

#include <cmath>

#include "load.hpp"
#include "window.hpp"

namespace dsa::reference {

RowVector indexer_row(const IndexerArgs& args, int64_t query) {
  const Window window = clamp_window(args.ks[query], args.ke[query], args.s_kv);
  const Matrix q = load_rows(args.q, query * args.h_i, args.h_i, args.d_i);
  const float* weights = args.weights + query * args.h_i;

  RowVector logits = RowVector::Constant(args.s_kv, -kInfinity);
  for (int j = window.begin; j < window.end; ++j) {
    const Vector dots = q * load_rows(args.k, j, 1, args.d_i).row(0).transpose();
    double sum = 0;
    for (int h = 0; h < args.h_i; ++h) sum += weights[h] * std::fmax(dots[h], 0.0);
    logits[j] = args.k_scale[j] * sum;
  }
  return logits;
}

void indexer(const IndexerArgs& args) {
  for (int64_t i = 0; i < args.s_q; ++i) {
    const RowVector logits = indexer_row(args, i);
    const Window window = clamp_window(args.ks[i], args.ke[i], args.s_kv);
    const Window written = args.clean ? Window{0, args.s_kv} : window;
    for (int j = written.begin; j < written.end; ++j) {
      args.logits[i * args.logits_stride + j] = float(logits[j]);
    }
  }
}

}  // namespace dsa::reference
