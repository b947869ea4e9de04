#include "load.hpp"

#include <array>

namespace dsa::reference {

double decode(e4m3 byte) {
  // All 256 values once: a large KV cache has hundreds of millions of bytes.
  static const std::array<double, 256> table = [] {
    std::array<double, 256> values{};
    for (int code = 0; code < 256; ++code) values[code] = to_float(e4m3{uint8_t(code)});
    return values;
  }();
  return table[byte.bits];
}

Matrix load_rows(const bf16* tensor, int64_t first, int64_t count, int width) {
  Matrix rows(count, width);
  const bf16* source = tensor + first * width;
  for (int64_t i = 0; i < rows.size(); ++i) rows.data()[i] = to_float(source[i]);
  return rows;
}

Matrix load_rows(const e4m3* tensor, int64_t first, int64_t count, int width) {
  Matrix rows(count, width);
  const e4m3* source = tensor + first * width;
  for (int64_t i = 0; i < rows.size(); ++i) rows.data()[i] = decode(source[i]);
  return rows;
}

Matrix load_query(const SparseMlaFwdArgs& args, int64_t batch, int64_t query, int64_t group) {
  const int64_t heads = args.h_q / args.g;
  const int64_t first = (batch * args.s_q + query) * args.h_q + group * heads;
  if (!args.fp8) return load_rows(static_cast<const bf16*>(args.q), first, heads, kDimQK);

  Matrix q = load_rows(static_cast<const e4m3*>(args.q), first, heads, kDimQK);
  if (args.q_scale) {
    for (int64_t h = 0; h < heads; ++h) q.row(h) *= args.q_scale[first + h];
  }
  return q;
}

Matrix load_kv(const SparseMlaFwdArgs& args, int64_t batch, int64_t group, const std::vector<int64_t>& rows) {
  Matrix kv(rows.size(), kDimQK);
  for (int64_t j = 0; j < kv.rows(); ++j) {
    const int64_t row = (batch * args.s_kv + rows[j]) * args.g + group;
    if (args.fp8) {
      const e4m3* source = static_cast<const e4m3*>(args.kv) + row * kDimQK;
      const double scale = args.kv_scale ? args.kv_scale[row] : 1.0;
      for (int d = 0; d < kDimQK; ++d) kv(j, d) = decode(source[d]) * scale;
    } else {
      const bf16* source = static_cast<const bf16*>(args.kv) + row * kDimQK;
      for (int d = 0; d < kDimQK; ++d) kv(j, d) = to_float(source[d]);
    }
  }
  return kv;
}

}  // namespace dsa::reference
