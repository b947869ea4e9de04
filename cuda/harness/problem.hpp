/// @file problem.hpp
/// One instance of a stage: sizes and scalars in the Args struct, input tensors beside it.
///
/// `bindings(args)` is the single table that says which tensor of which name, type and shape each pointer of
/// an Args struct is. Validation, allocation, copying, checking and the file interface all walk that table.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "../common/registry.hpp"
#include "tensor.hpp"

namespace dsa::harness {

/// A stage with its inputs. Pointers in `args` are null; Resident and host_args bind copies of it.
struct Problem {
  Args args;
  TensorMap inputs;  ///< full shapes; `logits` without the padding that its row stride adds
  /// Shapes that output files use when the input file left out axes of extent 1; otherwise the full shape.
  std::map<std::string, std::vector<int64_t>> file_shapes = {};
  /// FP8 attention: how far a row of `out` may be off, |got - want| / |want|. Special data allow less.
  double fp8_row_error = 2e-2;
};

Stage stage_of(const Args& args);

/// One pointer of an Args struct.
struct Binding {
  std::string name;  ///< tensor name in files
  DType dtype;
  std::vector<int64_t> shape;  ///< from the sizes in the Args; a logits tensor has its stride as last extent
  bool output;
  bool optional;        ///< the pointer may stay null
  void** pointer;       ///< where the address goes, through set_pointer (inside the given Args)
  int64_t columns = 0;  ///< of `shape.back()`, how many hold data; the rest is row padding
  bool scratch = false; ///< memory that a kernel may use: an output that nobody reads
};

/// The table of `args`: inputs first, then outputs. QuantizeArgs lists both `x_bf16` and `x_f32` under the
/// name "x"; the one whose dtype the problem's tensor has is bound, the other stays null.
std::vector<Binding> bindings(Args& args);

/// Stores `address` in the pointer that the binding stands for.
void set_pointer(const Binding& binding, const void* address);

/// The tensor that belongs to an input binding: null when it is optional and absent, or of the other dtype.
const Tensor* input_of(const Problem& problem, const Binding& binding);

/// The scalars that a stage reads from metadata or options.
const std::vector<std::string>& scalar_names(Stage stage);

/// Builds and validates a problem of `stage` from the tensors and scalars of a file. `scalars` holds the
/// file's metadata with command-line options laid over it: sm_scale, causal, q_start, kv_stride, topk, clean,
/// deterministic, scale. Throws BadInput naming the tensor; every size that reaches an Args struct is
/// non-negative and fits its type. `source` (the file name) begins every message. A tensor that the stage
/// does not know is an error unless its name starts with "want_" or "unquantized_". In sparse MLA files the
/// axes b and g may be left out where they are 1, in each tensor on its own: q says whether there is a batch
/// (rank 4) or not (rank 3); of the readings of kv and indices that fit it, the one pair with the same g is
/// taken (there is never more than one).
Problem make_problem(Stage stage, TensorMap tensors, const std::map<std::string, std::string>& scalars,
                     const std::string& source);

/// The stage that a file is for, judged by its tensors; throws BadInput when none fits.
Stage detect_stage(const TensorMap& tensors, const std::string& source);

/// One line: "sparse_mla_fwd b=1 s_q=4 s_kv=200 h_q=8 topk=128 bf16".
std::string describe(const Args& args);

}  // namespace dsa::harness
