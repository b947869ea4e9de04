/// @file quantize.hpp
/// Quantisation to e4m3 with one scale per row, and the 656-byte row of the FP8 KV cache.
///
///     scale    = max(amax, 1e-4) / 448         amax = max_j |x[j]|       (float32)
///     byte[j]  = e4m3(x[j] / scale)            a division in float32, not a product with 1 / scale
///     value[j] ~ scale * decode(byte[j])
///
/// In the power-of-two mode (ue8m0: an exponent and nothing else) the scale is rounded *up* first and then
/// divides, so that |x / scale| <= 448 still holds. The scale that divides is the scale that is stored.
///
/// The floor of 1e-4 keeps the scale of an all-zero row positive.
///
/// Values that are not finite do not choose the scale, so they cannot spoil their neighbours: NaN becomes the
/// NaN byte 0x7f and an infinity saturates to +-448, both under the scale of the finite values.
///
/// Source: DeepSeek-V3.2-Exp, inference/kernel.py (`act_quant`); the cache row is FlashMLA's "FP8 with
/// scale".
#pragma once

#include <span>
#include <vector>

#include "contracts.hpp"
#include "types.hpp"

namespace dsa::reference {

/// Scale of one row; 1 in mode kNone.
float row_scale(std::span<const float> row, ScaleMode mode);

struct QuantizedRow {
  std::vector<e4m3> bytes;
  float scale;
};

/// One row: [n] float32 -> [n] e4m3 and its scale.
QuantizedRow quantize_row(std::span<const float> row, ScaleMode mode);

/// All rows: writes args.bytes [rows, n] and args.scale [rows].
/// Precondition: exactly one of x_bf16 and x_f32 is set.
void quantize(const QuantizeArgs& args);

inline constexpr int kPackedGroup = 128;                    ///< latent values that share a scale
inline constexpr int kPackedGroups = kDimV / kPackedGroup;  ///< 4

/// A row of the FP8 KV cache, byte for byte (little-endian). The rope part is more sensitive to rounding than
/// the latent part and stays bf16.
struct PackedKvRow {
  e4m3 latent[kDimV];
  float scale[kPackedGroups];  ///< scale[t] belongs to latent[128 t .. 128 t + 127]
  bf16 rope[kDimRope];
};
static_assert(sizeof(PackedKvRow) == 656);

/// Quantises each group of 128 latent values with its own scale; copies the rope values.
PackedKvRow pack_kv_row(std::span<const bf16, kDimQK> row, ScaleMode mode);

/// The 576 values of a packed row: scale * latent, then rope. Exact in float64.
RowVector unpack_kv_row(const PackedKvRow& packed);

}  // namespace dsa::reference
