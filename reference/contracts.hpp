/// @file contracts.hpp
/// What each stage of DeepSeek Sparse Attention takes and gives: one plain struct per stage.
///
/// The same struct, passed by value, is the argument of the Eigen reference (host pointers) and of every
/// CUDA kernel (device pointers). Tensors are row-major and contiguous unless a stride is named; the shape
/// stands beside each pointer. Offsets into tensors are formed in 64 bits: `int64_t(row) * width`.
#pragma once

#include <cstdint>

#include "numeric.hpp"

namespace dsa {

inline constexpr int kDimQK = 576;    ///< width of a q row and of a KV row: latent + rope
inline constexpr int kDimV = 512;     ///< width of an output row; V is the first 512 columns of the KV row
inline constexpr int kDimRope = 64;   ///< the last 64 columns of a KV row
inline constexpr int kInvalid = -1;   ///< the only invalid index we emit; any out-of-range value is accepted

/// How quantisation chooses the scale of a row.
enum class ScaleMode {
  kNone,     ///< no scale: values are converted as they are (scale output is 1)
  kRow,      ///< max(amax, 1e-4) / 448
  kRowPow2,  ///< the same, rounded up to a power of two (the ue8m0 format of DeepSeek-V3.2)
};

/// Quantisation of rows to e4m3. bytes[i, j] = e4m3(x[i, j] / scale[i]); the scale that divides is stored.
struct QuantizeArgs {
  int64_t rows = 0;
  int n = 0;
  ScaleMode mode = ScaleMode::kRow;
  // inputs: exactly one of the two is set
  const bf16* x_bf16 = nullptr;   ///< [rows, n]
  const float* x_f32 = nullptr;   ///< [rows, n]
  // outputs
  e4m3* bytes = nullptr;          ///< [rows, n]
  float* scale = nullptr;         ///< [rows]
};

/// Lightning indexer (DeepSeek-V3.2-Exp report, equation 1).
/// logits[i, j] = k_scale[j] * sum_h weights[i, h] * max(q[i, h] . k[j], 0) for j in [ks[i], ke[i]).
struct IndexerArgs {
  int s_q = 0;
  int s_kv = 0;
  int h_i = 0;                       ///< indexer heads: 64 in DeepSeek-V3.2, also 32
  int d_i = 0;                       ///< indexer width: 128, also 64
  bool clean = true;                 ///< write -inf outside [ks, ke); otherwise such columns are left undefined
  int64_t logits_stride = 0;         ///< elements from one logits row to the next, >= s_kv
  const e4m3* q = nullptr;           ///< [s_q, h_i, d_i]
  const e4m3* k = nullptr;           ///< [s_kv, d_i]
  const float* k_scale = nullptr;    ///< [s_kv]
  const float* weights = nullptr;    ///< [s_q, h_i], any sign; q's scale and the softmax scale are folded in
  const int32_t* ks = nullptr;       ///< [s_q] first column of the window; clamped to [0, s_kv]
  const int32_t* ke = nullptr;       ///< [s_q] one past the last; clamped too, and ke <= ks is an empty row
  float* logits = nullptr;           ///< [s_q, s_kv], row stride logits_stride
};

/// Top-k selector: the columns of the `topk` largest logits of each row's window, then -1.
/// NaN and -inf are never selected; -0 equals +0.
struct TopkArgs {
  int rows = 0;
  int n = 0;
  int topk = 0;
  bool deterministic = false;        ///< lowest columns win a tie, and the row is sorted by column
  int64_t logits_stride = 0;         ///< elements from one logits row to the next, >= n
  const float* logits = nullptr;     ///< [rows, n], row stride logits_stride
  const int32_t* ks = nullptr;       ///< [rows], as in IndexerArgs
  const int32_t* ke = nullptr;       ///< [rows]
  int32_t* indices = nullptr;        ///< [rows, topk] absolute columns
};

/// Indexer and top-k selector in one: the columns that a query attends to. A window of at most `topk` columns is selected whole,
/// whatever its logits; from a longer one the columns of the `topk` largest logits, as in TopkArgs.
struct IndexTopkArgs {
  int s_q = 0;
  int s_kv = 0;
  int h_i = 0;
  int d_i = 0;
  int topk = 0;
  bool deterministic = false;        ///< as in TopkArgs
  int chunk = 0;                     ///< queries whose logits fit in the scratch, at least 1 if there are queries
  int64_t logits_stride = 0;         ///< elements from one row of the scratch to the next, >= s_kv
  const e4m3* q = nullptr;           ///< these six as in IndexerArgs
  const e4m3* k = nullptr;
  const float* k_scale = nullptr;
  const float* weights = nullptr;
  const int32_t* ks = nullptr;
  const int32_t* ke = nullptr;
  float* logits = nullptr;           ///< [chunk, logits_stride] scratch: no result, and nothing is expected in it
  int32_t* indices = nullptr;        ///< [s_q, topk] absolute columns, then -1
};

/// Bytes that the scratch of index_topk may take: 4096 queries over 32768 keys, as one chunk.
inline constexpr int64_t kLogitsScratchBytes = int64_t(512) << 20;

/// Sparse MLA forward: softmax attention of every query over its selected KV rows.
///
/// Slot j of query i is valid iff 0 <= indices[i, j] < s_kv, and j < topk_length[i], and, when `causal`,
/// indices[i, j] <= floor((q_start + i + 1 - kv_stride) / kv_stride). Other slots contribute nothing.
/// A query with no valid slot gets out = 0, lse = +inf, max_logits = -inf.
struct SparseMlaFwdArgs {
  int b = 1;                          ///< batch
  int s_q = 0;
  int s_kv = 0;
  int h_q = 0;                        ///< query heads, a multiple of g; head h reads KV group h / (h_q / g)
  int g = 1;                          ///< KV groups (1 for MLA)
  int topk = 0;
  float sm_scale = 0;                 ///< logit = (q . k) * sm_scale [* q_scale * kv_scale]
  bool causal = false;
  int64_t q_start = 0;                ///< absolute position of query 0
  int64_t kv_stride = 1;              ///< one KV row is kept per kv_stride tokens
  bool fp8 = false;                   ///< q and kv hold e4m3; otherwise bf16
  const void* q = nullptr;            ///< bf16 or e4m3 [b, s_q, h_q, 576]
  const void* kv = nullptr;           ///< bf16 or e4m3 [b, s_kv, g, 576]
  const int32_t* indices = nullptr;   ///< [b, s_q, g, topk]
  const float* q_scale = nullptr;     ///< [b, s_q, h_q], FP8 only; null means 1
  const float* kv_scale = nullptr;    ///< [b, s_kv, g], FP8 only; null means 1
  const int32_t* topk_length = nullptr;  ///< [b, s_q], clamped to [0, topk]; null means topk
  const float* attn_sink = nullptr;   ///< [h_q]; null means none. lse and max_logits do not include it
  bf16* out = nullptr;                ///< [b, s_q, h_q, 512]
  float* lse = nullptr;               ///< [b, s_q, h_q] natural logarithm of the sum of exp(logit)
  float* max_logits = nullptr;        ///< [b, s_q, h_q] largest valid logit
};

/// Sparse MLA backward, for bf16 inputs. With P = exp(logit - lse), dP = d_out . v and
/// dS = P * (dP - delta) * sm_scale: dq = dS K, and dkv = dS^T Q with P^T d_out added to its first 512 columns.
/// With a sink, P is multiplied by 1 / (1 + exp(sink - lse)), the factor that the forward put on `out`.
/// Validity of slots is the forward's. A query with lse = +inf contributes exactly nothing.
struct SparseMlaBwdArgs {
  int b = 1;
  int s_q = 0;
  int s_kv = 0;
  int h_q = 0;
  int g = 1;
  int topk = 0;
  float sm_scale = 0;
  bool causal = false;
  int64_t q_start = 0;
  int64_t kv_stride = 1;
  const bf16* q = nullptr;            ///< [b, s_q, h_q, 576]
  const bf16* kv = nullptr;           ///< [b, s_kv, g, 576]
  const int32_t* indices = nullptr;   ///< [b, s_q, g, topk]
  const int32_t* topk_length = nullptr;  ///< [b, s_q] or null
  const float* attn_sink = nullptr;      ///< [h_q] or null
  const bf16* out = nullptr;          ///< [b, s_q, h_q, 512] of the forward
  const float* lse = nullptr;         ///< [b, s_q, h_q] of the forward, +inf on empty rows
  const bf16* d_out = nullptr;        ///< [b, s_q, h_q, 512]
  bf16* dq = nullptr;                 ///< [b, s_q, h_q, 576]
  bf16* dkv = nullptr;                ///< [b, s_kv, g, 576], dkv_f32 rounded once
  float* dkv_f32 = nullptr;           ///< [b, s_kv, g, 576] the accumulator; a launch starts by clearing it
  float* delta = nullptr;             ///< [b, s_q, h_q] = sum_d out * d_out
};

/// The last KV row that query i may see under the causal rule: floor((q_start + i + 1 - kv_stride) / kv_stride).
/// Negative when it sees none. (C++ division truncates towards zero, hence the shift by one stride.)
constexpr int64_t last_visible_row(int64_t query, int64_t q_start, int64_t kv_stride) {
  const int64_t seen = q_start + query + 1;
  return seen < kv_stride ? -1 : seen / kv_stride - 1;
}

}  // namespace dsa
