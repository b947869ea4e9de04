#include "dense_mla.hpp"

#include <algorithm>
#include <numeric>

#include "load.hpp"

namespace dsa::reference {

Attention dense_mla_query(const SparseMlaFwdArgs& args, int64_t batch, int64_t query) {
  int64_t visible = args.s_kv;
  if (args.causal) {
    visible = std::min(visible, last_visible_row(query, args.q_start, args.kv_stride) + 1);
  }
  std::vector<int64_t> rows(visible);
  std::iota(rows.begin(), rows.end(), 0);

  Attention all = Attention::empty(args.h_q);
  for (int64_t group = 0; group < args.g; ++group) {
    const Matrix q = load_query(args, batch, query, group);
    const Matrix kv = load_kv(args, batch, group, rows);
    all.set_heads(group * q.rows(), attend(q, kv, args.sm_scale));
  }
  return finalize(all, args.attn_sink);
}

}  // namespace dsa::reference
