// Buffers and residents: where guards and poison lie, how rows are padded.
#include <doctest/doctest.h>

#include <cmath>

#include "cuda/device/emulator/memory.hpp"
#include "host_machine.hpp"

using namespace dsa;
using namespace dsa::harness;

namespace {

Problem padded_topk() {
  TopkArgs args;
  args.rows = 3;
  args.n = 5;
  args.topk = 2;
  args.logits_stride = 8;
  Problem problem{args, {}};
  problem.inputs["logits"] = generate::normal(DType::kF32, {3, 5}, 1);
  problem.inputs["ks"] = generate::integers({3}, {0, 0, 0});
  problem.inputs["ke"] = generate::integers({3}, {5, 5, 5});
  return problem;
}

}  // namespace

TEST_CASE("buffer: guards on both ends, and an address even without bytes") {
  test::HostMachine machine;
  for (const std::size_t bytes : {0, 1, 1000}) {
    const Buffer buffer(machine, bytes, "buffer");
    char* data = static_cast<char*>(buffer.data());
    REQUIRE(data != nullptr);
    CHECK(reinterpret_cast<uintptr_t>(data) % 256 == 0);
    CHECK(buffer.guard_report().empty());
    data[bytes] = 0;
    CHECK(buffer.guard_report() == "wrote 1 bytes past the end");
    data[-4096] = data[-1] = 0;
    CHECK(buffer.guard_report() == "wrote 2 bytes before the start");
  }
}

TEST_CASE("buffer: the emulator knows it by name and lets nobody touch the guards") {
  const std::unique_ptr<Machine> machine = open(Device::kEmulator);
  const Buffer buffer(*machine, 1000, "kv");
  const char* data = static_cast<char*>(buffer.data());
  const auto verdict = [](const char* address) {
    return emulator::judge({address, 4, emulator::Access::Kind::kWrite}, 0, {});
  };
  CHECK(verdict(data).empty());
  CHECK(verdict(data + 996).empty());
  CHECK(verdict(data + 1000) == "writes 4 bytes at 'kv' + 1000, 0 bytes past its end (1000 bytes)");
  CHECK(verdict(data - 8) == "writes 4 bytes, 8 bytes before 'kv'");
  const Buffer neighbour(*machine, 1000, "indices");
  CHECK(verdict(data + (1 << 20)) == "writes 4 bytes at 'kv' + 1048576, 1047576 bytes past its end (1000 bytes)");
}

TEST_CASE("resident: padding of input rows is garbage, of output rows stays untouched") {
  test::HostMachine machine;
  const Problem problem = padded_topk();
  const Resident resident(machine, problem);
  const auto& args = std::get<TopkArgs>(resident.args());
  bool nan = false, huge = false;
  for (int64_t row = 0; row < 3; ++row) {
    for (int64_t j = 0; j < 5; ++j)
      CHECK(args.logits[row * 8 + j] == problem.inputs.at("logits").at(row * 5 + j));
    for (int64_t j = 5; j < 8; ++j) {
      nan = nan || std::isnan(args.logits[row * 8 + j]);
      huge = huge || args.logits[row * 8 + j] == 1e30f;
    }
  }
  CHECK(nan);
  CHECK(huge);
  CHECK(resident.input_damage().empty());
}

TEST_CASE("resident: poison is NaN for floats and no index for integers") {
  test::HostMachine machine;
  const Problem problem = generate::sparse_fwd({1, 2, 10, 2, 1, 4});
  Resident resident(machine, problem);
  resident.poison_outputs();
  const TensorMap outputs = resident.read_outputs();
  for (const auto& [name, tensor] : outputs) CHECK(std::isnan(tensor.at(tensor.elements() - 1)));
  const Problem selection = padded_topk();
  Resident other(machine, selection);
  other.poison_outputs();
  CHECK(other.read_outputs().at("indices").at(3) == 0x7f7f7f7f);
}

TEST_CASE("resident: inputs are replaced and restored") {
  test::HostMachine machine;
  const Problem problem = padded_topk();
  Resident resident(machine, problem);
  const auto& args = std::get<TopkArgs>(resident.args());
  const Tensor other = generate::integers({3}, {1, 2, 3});
  resident.replace_input("ke", other);
  CHECK(args.ke[2] == 3);
  CHECK(resident.input_damage().empty());
  resident.restore_inputs();
  CHECK(args.ke[2] == 5);
  CHECK(resident.input_damage().empty());
  const_cast<int32_t*>(args.ke)[0] = 4;
  CHECK(resident.input_damage() == "input 'ke' was changed by the kernel");
}

TEST_CASE("reference: outputs of every stage, also of empty problems") {
  const TensorMap outputs = run_reference(generate::sparse_fwd({1, 0, 10, 2, 1, 4}));
  CHECK(outputs.at("out").shape == std::vector<int64_t>{1, 0, 2, 512});
  const TensorMap none = run_reference(generate::sparse_fwd({1, 1, 0, 2, 1, 4}));
  CHECK(none.at("out").at(0) == 0);
  CHECK(none.at("lse").at(0) == INFINITY);
  CHECK(none.at("max_logits").at(0) == -INFINITY);
}
