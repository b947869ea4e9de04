/// @file work.hpp
/// The one place where work is counted: FLOP or bytes of one launch, and the yardstick it is compared with.
///
/// | stage          | counted                                                        | yardstick           |
/// |----------------|----------------------------------------------------------------|---------------------|
/// | quantize       | bytes: x read, bytes and scales written, each once             | copy                |
/// | indexer        | FLOP: 2 h_i d_i for every (query, key) inside the window       | cuBLASLt fp8        |
/// | topk           | bytes: one read of every window, 4 sum(ke - ks)                | copy                |
/// | sparse_mla_fwd | FLOP: 2 b s_q h_q topk (576 + 512)                             | cuBLASLt bf16       |
/// | sparse_mla_bwd | FLOP: 2 b s_q h_q topk (3 * 576 + 2 * 512)                     | cuBLASLt bf16       |
///
/// A multiplication and an addition are two FLOP. Softmax, scales and conversions are not counted.
/// Forward: S = Q K^T has width 576, O = P V width 512. Backward: S, dQ = dS K and dK = dS^T Q have width
/// 576, dP = dO V^T and dV = P^T dO width 512.
/// The sparse stages count slots, valid or not, as FlashMLA does: `valid_amount` says how many of them count
/// for something, which for causal problems can be half.
/// The indexer counts useful pairs only: work that a kernel does outside the windows earns nothing.
#pragma once

#include <optional>
#include <string>

#include "../cuda/harness/problem.hpp"

namespace dsa::bench {

enum class Unit { kFlop, kBytes };

/// Work of one launch.
struct Work {
  Unit unit = Unit::kFlop;
  double amount = 0;  ///< FLOP or bytes, as in the table above
  double valid_amount =
      0;  ///< the part of it that valid slots are responsible for; equal to `amount` elsewhere
};

/// Counts a problem whose inputs are present (windows, indices and topk_length are read).
Work work_of(const harness::Problem& problem);

/// One sentence for the line under a table.
const char* work_convention(Stage stage);

/// Bytes of all tensors of a problem, inputs and outputs, row padding included: the least traffic if each is
/// touched once.
double tensor_bytes(const harness::Problem& problem);

/// What a launch is compared with, measured on the same GPU in the same regime.
enum class YardstickKind { kCublasBf16, kCublasFp8, kCopy };
inline constexpr YardstickKind kYardsticks[] = {YardstickKind::kCublasBf16, YardstickKind::kCublasFp8,
                                                YardstickKind::kCopy};

struct YardstickChoice {
  YardstickKind kind;
  /// Whether no kernel can be faster. An FP8 kernel may pass the bf16 product, and a kernel whose data stay
  /// in the cache may pass the copy.
  bool ceiling;
};
YardstickChoice yardstick_for(const Args& args, bool warm);

Unit yardstick_unit(YardstickKind kind);
/// In JSON rows: "cublaslt_bf16/m:8192/n:8192/k:8192", ...
std::string yardstick_name(YardstickKind kind);
/// In tables: "cuBLASLt bf16", "cuBLASLt fp8", "copy".
const char* yardstick_title(YardstickKind kind);

inline constexpr int64_t kYardstickSize = 8192;            ///< m = n = k of the matrix products
inline constexpr int64_t kYardstickCopyBytes = 2LL << 30;  ///< read once and written once: twice as many move

/// Why a ratio cannot be true, or "" if it can: a ceiling was passed, by the work that is valid. A kernel may skip the rest.
std::string above_ceiling(const YardstickChoice& yardstick, double ratio, const Work& work);

}  // namespace dsa::bench
