#include "tolerance.hpp"

namespace dsa::harness {

namespace {

/// Rounding a result to bf16: at most 2^-8 of it, and a little for results that were on the edge.
constexpr double kBf16Rounding = 1.01 / 256;
/// The same over a row: 1 - 2<a,b>/(|a|^2+|b|^2) comes to 1.4e-6 for random values and never to more than
/// this.
constexpr double kBf16RowDistance = 7.7e-6;

/// Results that are fixed to the bit.
Tolerance exact() {
  Tolerance t;
  t.exact = true;
  return t;
}

/// logits. The element-wise bound is a multiple of the size of the summands, which the judge knows.
Tolerance indexer_logits() {
  Tolerance t;
  t.row_distance = 5e-6;  // DeepGEMM's bound for its float32 logits
  return t;
}

/// lse and max_logits, [b, s_q, h_q] float32.
Tolerance softmax_statistics(bool fp8_products) {
  Tolerance t;
  t.atol = 1e-6;
  t.rtol = 2.01 / 65536;      // FlashMLA's bound
  t.exact_zero_rows = false;  // a logarithm that is 0 is a number like any other
  if (fp8_products) {
    // Sums of e4m3 products keep about 13 bits below their largest term; 576 random terms of a logit of
    // size 1.
    t.atol = 0x1p-9;
    t.rtol = 0x1p-11;
  }
  return t;
}

/// out of the forward, bf16.
Tolerance attention_output(Accuracy accuracy) {
  Tolerance t;
  switch (accuracy) {
    case Accuracy::kFp8:
      // P in e4m3 has 4 significant bits: single elements may be off by their own size, rows may not. The row
      // limit is the problem's (Problem::fp8_row_error).
      t.elementwise = false;
      break;
    case Accuracy::kBf16:
      t.atol = 8e-4;  // FlashMLA's bounds: P rounded to bf16 (2^-9), output rounded to bf16 (2^-9)
      t.rtol = 3.01 / 128;
      // These presume many keys of size 1/10. With few keys of size 1, each term is off by up to 2^-9 of itself as well;
      // the row's rms stands for the size of the terms.
      t.rms = 1.0 / 512;
      t.row_distance = 7e-6;
      break;
    default:
      t.atol = 1e-5;  // order of summation
      t.rtol = kBf16Rounding;
      t.row_distance = kBf16RowDistance;
  }
  return t;
}

/// dq and dkv, bf16, and dkv_f32.
Tolerance gradient(Accuracy accuracy, bool rounded_output) {
  Tolerance t;
  if (accuracy == Accuracy::kBf16) {
    // P and dS are rounded to bf16 before they multiply: each term is off by up to 2^-9 of itself, the sum by
    // that share of the size of its terms, for which the row's rms stands.
    t.rtol = 3.01 / 128;
    t.rms = 2e-2;
    t.row_distance = 2e-5;
  } else {
    t.rtol = rounded_output ? kBf16Rounding : 1e-4;
    t.rms = 1e-4;  // order of summation and of the atomics
    t.row_distance = rounded_output ? kBf16RowDistance : 1e-9;
  }
  return t;
}

}  // namespace

Tolerance tolerance_of(Stage stage, const std::string& output, Accuracy accuracy, bool fp8) {
  Tolerance t;
  switch (stage) {
    case Stage::kQuantize:
    case Stage::kTopk:
    case Stage::kIndexTopk:
      return exact();
    case Stage::kIndexer:
      t = indexer_logits();
      break;
    case Stage::kSparseMlaFwd:
      t = output == "out" ? attention_output(accuracy)
                          : softmax_statistics(fp8 && accuracy == Accuracy::kFp8);
      break;
    case Stage::kSparseMlaBwd:
      if (output == "delta") {
        t.rtol = 1e-5;  // a float32 sum; cancellation is covered by the judge's bound
      } else {
        t = gradient(accuracy, output != "dkv_f32");
      }
      // The latent part of dkv holds P^T d_out, about a hundred times the dS^T Q that the rope part shows.
      if (output != "delta") t.splits = {kDimV};
      break;
  }
  t.atol += kNegligible;
  return t;
}

}  // namespace dsa::harness
