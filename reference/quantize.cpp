#include "quantize.hpp"

#include <algorithm>
#include <cmath>

#include "load.hpp"

namespace dsa::reference {

namespace {

constexpr float kSmallestAmax = 1e-4f;

/// The smallest power of two that is not below x. x > 0 and normal.
float round_up_to_power_of_two(float x) {
  int exponent;
  const float fraction = std::frexp(x, &exponent);  // x = fraction * 2^exponent, 0.5 <= fraction < 1
  return std::ldexp(1.0f, fraction == 0.5f ? exponent - 1 : exponent);
}

}  // namespace

float row_scale(std::span<const float> row, ScaleMode mode) {
  if (mode == ScaleMode::kNone) return 1.0f;
  float amax = 0.0f;
  for (float x : row) {
    if (std::isfinite(x)) amax = std::max(amax, std::fabs(x));
  }
  const float scale = std::max(amax, kSmallestAmax) / kE4m3Max;
  return mode == ScaleMode::kRowPow2 ? round_up_to_power_of_two(scale) : scale;
}

QuantizedRow quantize_row(std::span<const float> row, ScaleMode mode) {
  QuantizedRow result{std::vector<e4m3>(row.size()), row_scale(row, mode)};
  for (std::size_t j = 0; j < row.size(); ++j) result.bytes[j] = to_e4m3(row[j] / result.scale);
  return result;
}

void quantize(const QuantizeArgs& args) {
  std::vector<float> row(args.n);
  for (int64_t i = 0; i < args.rows; ++i) {
    for (int j = 0; j < args.n; ++j) {
      const int64_t at = i * args.n + j;
      row[j] = args.x_bf16 ? to_float(args.x_bf16[at]) : args.x_f32[at];
    }
    const QuantizedRow quantized = quantize_row(row, args.mode);
    std::copy(quantized.bytes.begin(), quantized.bytes.end(), args.bytes + i * args.n);
    args.scale[i] = quantized.scale;
  }
}

PackedKvRow pack_kv_row(std::span<const bf16, kDimQK> row, ScaleMode mode) {
  PackedKvRow packed;
  for (int group = 0; group < kPackedGroups; ++group) {
    std::vector<float> latent(kPackedGroup);
    for (int j = 0; j < kPackedGroup; ++j) latent[j] = to_float(row[group * kPackedGroup + j]);
    const QuantizedRow quantized = quantize_row(latent, mode);
    std::copy(quantized.bytes.begin(), quantized.bytes.end(), packed.latent + group * kPackedGroup);
    packed.scale[group] = quantized.scale;
  }
  std::copy(row.begin() + kDimV, row.end(), packed.rope);
  return packed;
}

RowVector unpack_kv_row(const PackedKvRow& packed) {
  RowVector row(kDimQK);
  for (int d = 0; d < kDimV; ++d) row[d] = packed.scale[d / kPackedGroup] * decode(packed.latent[d]);
  for (int d = 0; d < kDimRope; ++d) row[kDimV + d] = to_float(packed.rope[d]);
  return row;
}

}  // namespace dsa::reference
