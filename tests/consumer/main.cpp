// One query, one head, one KV row that is selected: the output must be that row's latent part.
#include <reference/sparse_mla_fwd.hpp>

#include <cmath>
#include <cstdio>
#include <vector>

int main() {
  std::vector<dsa::bf16> q(dsa::kDimQK), kv(2 * dsa::kDimQK);
  for (int d = 0; d < dsa::kDimQK; ++d) {
    q[size_t(d)] = dsa::to_bf16(0.25f);
    kv[size_t(d)] = dsa::to_bf16(1.0f);
    kv[size_t(dsa::kDimQK + d)] = dsa::to_bf16(float(d % 7));
  }
  const std::vector<int32_t> indices = {-1, 1};
  dsa::SparseMlaFwdArgs args;
  args.s_q = args.h_q = 1;
  args.s_kv = args.topk = 2;
  args.sm_scale = 1.0f / 24;
  args.q = q.data();
  args.kv = kv.data();
  args.indices = indices.data();
  const dsa::reference::Attention result = dsa::reference::sparse_mla_fwd_query(args, 0, 0);
  for (int d = 0; d < dsa::kDimV; ++d) {
    if (std::fabs(result.out(0, d) - d % 7) > 1e-12) {
      std::printf("out[%d] is %g\n", d, result.out(0, d));
      return 1;
    }
  }
  std::puts("ok");
}
