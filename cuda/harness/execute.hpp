/// @file execute.hpp
/// Running one rung, or the reference, on one problem, with everything around it that catches a bad kernel:
/// outputs poisoned before the launch, guard bands on both ends of every buffer, inputs compared afterwards.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "problem.hpp"

namespace dsa::harness {

/// A machine that holds buffers and runs kernels. One per Device; `open` makes it.
class Machine {
 public:
  virtual ~Machine() = default;
  virtual void* allocate(std::size_t bytes) = 0;  ///< 256-byte aligned; throws std::runtime_error
  virtual void release(void* address) = 0;
  /// Says what lies in a part of an allocation; a machine that can stops kernels that touch the rest.
  virtual void name(void* /*address*/, std::size_t /*bytes*/, const std::string& /*name*/) {}
  virtual void copy_in(void* to, const void* from, std::size_t bytes) = 0;
  virtual void copy_out(void* to, const void* from, std::size_t bytes) = 0;
  virtual void fill(void* address, unsigned char value, std::size_t bytes) = 0;
  /// Fills every SM's shared memory with NaN patterns, so that a kernel that reads before it writes shows.
  virtual void poison_shared_memory() = 0;
  /// Waits for all work; returns "" or the error in words.
  virtual std::string synchronize() = 0;
  virtual void* stream() = 0;  ///< a cudaStream_t
};

/// "" if the device can be opened here, else why not ("no NVIDIA driver", "built without CUDA", ...).
std::string unavailable(Device device);

/// Opens kEmulator or kGpu; throws std::runtime_error when unavailable.
std::unique_ptr<Machine> open(Device device);

/// Selects how the emulator orders threads (`dsa check --schedule KIND --seed N`). Throws BadInput for a kind
/// that it does not know.
void set_emulator_schedule(const std::string& kind, uint64_t seed);

/// Device memory with kGuardBytes of a known value before and after. A null-sized buffer still has a valid
/// address. The machine learns the name of what lies between the guards.
class Buffer {
 public:
  static constexpr std::size_t kGuardBytes = 4096;
  Buffer(Machine& machine, std::size_t bytes, const std::string& name, unsigned char guard = 0xff);
  ~Buffer();
  Buffer(Buffer&&) noexcept;
  Buffer& operator=(Buffer&&) = delete;
  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  /// "" or where a guard byte changed: "wrote 3 bytes before the start" / "wrote 16 bytes past the end".
  std::string guard_report() const;

 private:
  Machine* machine_;
  char* base_ = nullptr;
  char* data_ = nullptr;
  std::size_t bytes_ = 0;
  unsigned char guard_ = 0;
};

/// A problem resident on a machine: inputs copied once, outputs allocated, Args bound to the addresses. The
/// problem must outlive it.
///
/// Guard bytes are chosen so that reading or writing them shows: NaN around floats; 0 (a valid index) around
/// integer inputs; 0x7f around integer outputs, where a stray -1 would not show on 0xff. The padding between
/// rows of input logits holds NaN and +1e30 in turn.
class Resident {
 public:
  Resident(Machine& machine, const Problem& problem);
  ~Resident();
  Resident(const Resident&) = delete;
  Resident& operator=(const Resident&) = delete;

  const Args& args() const { return args_; }
  void poison_outputs();             ///< NaN for floats, 0x7f7f7f7f for int32
  TensorMap read_outputs() const;    ///< without row padding
  std::string input_damage() const;  ///< "" or "input 'kv' was changed by the kernel"
  std::string guard_report() const;  ///< "" or "'out': wrote 4 bytes past the end"; also row padding

  /// Uploads other values for one input; `tensor` must live until restore_inputs.
  void replace_input(const std::string& name, const Tensor& tensor);
  void restore_inputs();

 private:
  struct Bound;
  void upload(const Bound& bound);

  Machine& machine_;
  const Problem& problem_;
  Args args_;
  std::vector<Bound> bound_;  ///< in the order of `bindings(args_)`
};

enum class Status { kPassed, kIncorrect, kUnsupported, kRuntimeError };
const char* status_name(Status status);  ///< "PASSED", "INCORRECT", "UNSUPPORTED", "RUNTIME_ERROR"

struct RunResult {
  Status status = Status::kPassed;  ///< never kIncorrect unless a guard or an input was damaged
  std::string message;
  TensorMap outputs;
};

/// One launch on poisoned outputs: launch -> synchronise -> guards -> inputs -> outputs.
RunResult launch_once(const RungEntry& rung, Machine& machine, Resident& resident);

/// The same on a fresh Resident, after asking the rung whether it supports the sizes.
RunResult run_once(const RungEntry& rung, Machine& machine, const Problem& problem);

/// Args whose input pointers are the problem's own host tensors; logits are dense, outputs null.
Args host_args(const Problem& problem);

/// The Eigen reference, outputs rounded to the contract's types.
TensorMap run_reference(const Problem& problem);

}  // namespace dsa::harness
