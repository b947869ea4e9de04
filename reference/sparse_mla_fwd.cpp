#include "sparse_mla_fwd.hpp"

#include "load.hpp"
#include "selected.hpp"

namespace dsa::reference {

Attention sparse_mla_fwd_slots(const SparseMlaFwdArgs& args, int64_t batch, int64_t query, int64_t slot_begin,
                               int64_t slot_end) {
  Attention all = Attention::empty(args.h_q);
  for (int64_t group = 0; group < args.g; ++group) {
    const Matrix q = load_query(args, batch, query, group);
    const Matrix kv =
        load_kv(args, batch, group, selected_rows(args, batch, query, group, slot_begin, slot_end));
    all.set_heads(group * q.rows(), attend(q, kv, args.sm_scale));
  }
  return all;
}

Attention sparse_mla_fwd_query(const SparseMlaFwdArgs& args, int64_t batch, int64_t query) {
  return finalize(sparse_mla_fwd_slots(args, batch, query, 0, args.topk), args.attn_sink);
}

void sparse_mla_fwd(const SparseMlaFwdArgs& args) {
  for (int64_t batch = 0; batch < args.b; ++batch) {
    for (int64_t query = 0; query < args.s_q; ++query) {
      const Attention result = sparse_mla_fwd_query(args, batch, query);
      for (int64_t h = 0; h < args.h_q; ++h) {
        const int64_t row = (batch * args.s_q + query) * args.h_q + h;
        for (int d = 0; d < kDimV; ++d) args.out[row * kDimV + d] = to_bf16(float(result.out(h, d)));
        args.lse[row] = float(result.lse[h]);
        args.max_logits[row] = float(result.max_logits[h]);
      }
    }
  }
}

}  // namespace dsa::reference
