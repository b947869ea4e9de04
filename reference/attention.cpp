#include "attention.hpp"

#include <algorithm>
#include <cmath>

namespace dsa::reference {

Attention Attention::empty(int64_t heads) {
  return {Matrix::Zero(heads, kDimV), Vector::Constant(heads, -kInfinity),
          Vector::Constant(heads, -kInfinity)};
}

void Attention::set_heads(int64_t first, const Attention& part) {
  out.middleRows(first, part.out.rows()) = part.out;
  lse.segment(first, part.lse.size()) = part.lse;
  max_logits.segment(first, part.max_logits.size()) = part.max_logits;
}

Attention attend(const Matrix& q, const Matrix& kv, double sm_scale) {
  if (kv.rows() == 0) return Attention::empty(q.rows());

  Matrix s = sm_scale * (q * kv.transpose());  // [heads, n]
  const Vector m = s.rowwise().maxCoeff();
  const Matrix p = (s.colwise() - m).array().exp();
  const Vector l = p.rowwise().sum();

  Attention result;
  result.out = (p * kv.leftCols(kDimV)).array().colwise() / l.array();
  result.lse = m.array() + l.array().log();
  result.max_logits = m;
  return result;
}

Attention merge(const Attention& a, const Attention& b) {
  Attention result = Attention::empty(a.lse.size());
  for (int64_t h = 0; h < a.lse.size(); ++h) {
    const double larger = std::max(a.lse[h], b.lse[h]);
    if (larger == -kInfinity) continue;  // both empty: stays empty
    const double weight_a = std::exp(a.lse[h] - larger);
    const double weight_b = std::exp(b.lse[h] - larger);
    result.out.row(h) = (weight_a * a.out.row(h) + weight_b * b.out.row(h)) / (weight_a + weight_b);
    result.lse[h] = larger + std::log(weight_a + weight_b);
    result.max_logits[h] = std::max(a.max_logits[h], b.max_logits[h]);
  }
  return result;
}

double sink_factor(double sink, double lse) {
  return 1.0 / (1.0 + std::exp(sink - lse));
}

Attention finalize(Attention partial, const float* attn_sink) {
  for (int64_t h = 0; h < partial.lse.size(); ++h) {
    if (partial.lse[h] == -kInfinity) {
      partial.lse[h] = kInfinity;
    } else if (attn_sink) {
      partial.out.row(h) *= sink_factor(attn_sink[h], partial.lse[h]);
    }
  }
  return partial;
}

}  // namespace dsa::reference
