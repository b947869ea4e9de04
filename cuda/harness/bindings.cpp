#include <cstring>

#include "problem.hpp"

namespace dsa::harness {

namespace {

using Shape = std::vector<int64_t>;

// ---- The table of pointers -------------------------------------------------------------------------------

template <class T>
void** slot(T*& pointer) {
  return reinterpret_cast<void**>(const_cast<std::remove_const_t<T>**>(&pointer));
}

enum Use { kInput, kOptional, kOutput, kScratch };

Binding bind(const char* name, DType dtype, Shape shape, void** pointer, Use use, int64_t columns = -1) {
  const int64_t width = shape.empty() ? 1 : shape.back();
  return {name,
          dtype,
          std::move(shape),
          use == kOutput || use == kScratch,
          use == kOptional,
          pointer,
          columns < 0 ? width : columns,
          use == kScratch};
}

std::vector<Binding> table(QuantizeArgs& a) {
  return {bind("x", DType::kBF16, {a.rows, a.n}, slot(a.x_bf16), kOptional),
          bind("x", DType::kF32, {a.rows, a.n}, slot(a.x_f32), kOptional),
          bind("bytes", DType::kE4M3, {a.rows, a.n}, slot(a.bytes), kOutput),
          bind("scale", DType::kF32, {a.rows}, slot(a.scale), kOutput)};
}

std::vector<Binding> table(IndexerArgs& a) {
  return {bind("q", DType::kE4M3, {a.s_q, a.h_i, a.d_i}, slot(a.q), kInput),
          bind("k", DType::kE4M3, {a.s_kv, a.d_i}, slot(a.k), kInput),
          bind("k_scale", DType::kF32, {a.s_kv}, slot(a.k_scale), kInput),
          bind("weights", DType::kF32, {a.s_q, a.h_i}, slot(a.weights), kInput),
          bind("ks", DType::kI32, {a.s_q}, slot(a.ks), kInput),
          bind("ke", DType::kI32, {a.s_q}, slot(a.ke), kInput),
          bind("logits", DType::kF32, {a.s_q, a.logits_stride}, slot(a.logits), kOutput, a.s_kv)};
}

std::vector<Binding> table(TopkArgs& a) {
  return {bind("logits", DType::kF32, {a.rows, a.logits_stride}, slot(a.logits), kInput, a.n),
          bind("ks", DType::kI32, {a.rows}, slot(a.ks), kInput),
          bind("ke", DType::kI32, {a.rows}, slot(a.ke), kInput),
          bind("indices", DType::kI32, {a.rows, a.topk}, slot(a.indices), kOutput)};
}

std::vector<Binding> table(IndexTopkArgs& a) {
  return {bind("q", DType::kE4M3, {a.s_q, a.h_i, a.d_i}, slot(a.q), kInput),
          bind("k", DType::kE4M3, {a.s_kv, a.d_i}, slot(a.k), kInput),
          bind("k_scale", DType::kF32, {a.s_kv}, slot(a.k_scale), kInput),
          bind("weights", DType::kF32, {a.s_q, a.h_i}, slot(a.weights), kInput),
          bind("ks", DType::kI32, {a.s_q}, slot(a.ks), kInput),
          bind("ke", DType::kI32, {a.s_q}, slot(a.ke), kInput),
          bind("logits", DType::kF32, {a.chunk, a.logits_stride}, slot(a.logits), kScratch),
          bind("indices", DType::kI32, {a.s_q, a.topk}, slot(a.indices), kOutput)};
}

std::vector<Binding> table(SparseMlaFwdArgs& a) {
  const DType dtype = a.fp8 ? DType::kE4M3 : DType::kBF16;
  return {bind("q", dtype, {a.b, a.s_q, a.h_q, kDimQK}, &const_cast<void*&>(a.q), kInput),
          bind("kv", dtype, {a.b, a.s_kv, a.g, kDimQK}, &const_cast<void*&>(a.kv), kInput),
          bind("indices", DType::kI32, {a.b, a.s_q, a.g, a.topk}, slot(a.indices), kInput),
          bind("q_scale", DType::kF32, {a.b, a.s_q, a.h_q}, slot(a.q_scale), kOptional),
          bind("kv_scale", DType::kF32, {a.b, a.s_kv, a.g}, slot(a.kv_scale), kOptional),
          bind("topk_length", DType::kI32, {a.b, a.s_q}, slot(a.topk_length), kOptional),
          bind("attn_sink", DType::kF32, {a.h_q}, slot(a.attn_sink), kOptional),
          bind("out", DType::kBF16, {a.b, a.s_q, a.h_q, kDimV}, slot(a.out), kOutput),
          bind("lse", DType::kF32, {a.b, a.s_q, a.h_q}, slot(a.lse), kOutput),
          bind("max_logits", DType::kF32, {a.b, a.s_q, a.h_q}, slot(a.max_logits), kOutput)};
}

std::vector<Binding> table(SparseMlaBwdArgs& a) {
  return {bind("q", DType::kBF16, {a.b, a.s_q, a.h_q, kDimQK}, slot(a.q), kInput),
          bind("kv", DType::kBF16, {a.b, a.s_kv, a.g, kDimQK}, slot(a.kv), kInput),
          bind("indices", DType::kI32, {a.b, a.s_q, a.g, a.topk}, slot(a.indices), kInput),
          bind("topk_length", DType::kI32, {a.b, a.s_q}, slot(a.topk_length), kOptional),
          bind("attn_sink", DType::kF32, {a.h_q}, slot(a.attn_sink), kOptional),
          bind("out", DType::kBF16, {a.b, a.s_q, a.h_q, kDimV}, slot(a.out), kInput),
          bind("lse", DType::kF32, {a.b, a.s_q, a.h_q}, slot(a.lse), kInput),
          bind("d_out", DType::kBF16, {a.b, a.s_q, a.h_q, kDimV}, slot(a.d_out), kInput),
          bind("dq", DType::kBF16, {a.b, a.s_q, a.h_q, kDimQK}, slot(a.dq), kOutput),
          bind("dkv", DType::kBF16, {a.b, a.s_kv, a.g, kDimQK}, slot(a.dkv), kOutput),
          bind("dkv_f32", DType::kF32, {a.b, a.s_kv, a.g, kDimQK}, slot(a.dkv_f32), kOutput),
          bind("delta", DType::kF32, {a.b, a.s_q, a.h_q}, slot(a.delta), kOutput)};
}

// ---- describe --------------------------------------------------------------------------------------------

std::string item(const char* name, int64_t value) {
  return std::string(" ") + name + "=" + std::to_string(value);
}

std::string sizes_text(const QuantizeArgs& a) {
  const char* mode = a.mode == ScaleMode::kNone ? "none" : a.mode == ScaleMode::kRow ? "row" : "row_pow2";
  return item("rows", a.rows) + item("n", a.n) + " scale=" + mode;
}

std::string sizes_text(const IndexerArgs& a) {
  return item("s_q", a.s_q) + item("s_kv", a.s_kv) + item("h_i", a.h_i) + item("d_i", a.d_i) +
         item("stride", a.logits_stride) + (a.clean ? "" : " raw");
}

std::string sizes_text(const TopkArgs& a) {
  return item("rows", a.rows) + item("n", a.n) + item("topk", a.topk) + item("stride", a.logits_stride) +
         (a.deterministic ? " deterministic" : "");
}

std::string sizes_text(const IndexTopkArgs& a) {
  return item("s_q", a.s_q) + item("s_kv", a.s_kv) + item("h_i", a.h_i) + item("d_i", a.d_i) + item("topk", a.topk) +
         item("chunk", a.chunk) + item("stride", a.logits_stride) + (a.deterministic ? " deterministic" : "");
}

template <class A>
std::string sparse_text(const A& a) {
  std::string text = item("b", a.b) + item("s_q", a.s_q) + item("s_kv", a.s_kv) + item("h_q", a.h_q) +
                     (a.g == 1 ? "" : item("g", a.g)) + item("topk", a.topk);
  if (a.causal) text += " causal" + item("q_start", a.q_start) + item("kv_stride", a.kv_stride);
  return text;
}

std::string sizes_text(const SparseMlaFwdArgs& a) {
  return sparse_text(a) + (a.fp8 ? " fp8" : " bf16");
}
std::string sizes_text(const SparseMlaBwdArgs& a) {
  return sparse_text(a) + " bf16";
}

}  // namespace

Stage stage_of(const Args& args) {
  return std::visit([]<class A>(const A&) { return dsa::stage_of<A>(); }, args);
}

std::vector<Binding> bindings(Args& args) {
  return std::visit([](auto& a) { return table(a); }, args);
}

void set_pointer(const Binding& binding, const void* address) {
  // Not an assignment: the object is a `const bf16*` or the like, not a `void*`.
  std::memcpy(static_cast<void*>(binding.pointer), &address, sizeof address);
}

const Tensor* input_of(const Problem& problem, const Binding& binding) {
  const auto found = problem.inputs.find(binding.name);
  if (binding.output || found == problem.inputs.end() || found->second.dtype != binding.dtype) return nullptr;
  return &found->second;
}

std::string describe(const Args& args) {
  return stage_name(stage_of(args)) + std::visit([](const auto& a) { return sizes_text(a); }, args);
}

}  // namespace dsa::harness
