#include "indexer_data.hpp"

namespace dsa::harness {

Window whole(int s_kv) {
  return [=](int64_t) { return std::pair(0, s_kv); };
}

Window suffix(int s_q, int s_kv) {
  return [=](int64_t i) { return std::pair(0, int32_t(s_kv - s_q + i + 1)); };
}

TensorMap scoring_inputs(int s_q, int s_kv, int h_i, int d_i, uint64_t seed, const Window& window) {
  TensorMap inputs;
  inputs["q"] = generate::normal(DType::kE4M3, {s_q, h_i, d_i}, seed);
  inputs["k"] = generate::normal(DType::kE4M3, {s_kv, d_i}, seed + 100);
  inputs["k_scale"] = generate::uniform({s_kv}, seed + 200, 0.3f, 1.4f);
  inputs["weights"] = generate::normal(DType::kF32, {s_q, h_i}, seed + 300, 0.1f);
  inputs["ks"] = generate::integers({s_q}, [&](int64_t i) { return window(i).first; });
  inputs["ke"] = generate::integers({s_q}, [&](int64_t i) { return window(i).second; });
  return inputs;
}

}  // namespace dsa::harness
