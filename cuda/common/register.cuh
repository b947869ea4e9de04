/// @file register.cuh
/// How a kernel file puts itself on the list.
///
///     static const Register<TopkArgs, unsupported, launch> registered{
///         "01_naive", "one CTA per row, radix select", Accuracy::kExact, Repeatable::kYes};
#pragma once

#include <source_location>

#include "../device/device.cuh"
#include "registry.hpp"

namespace dsa {

#if defined(DSA_EMULATOR)
constexpr Device kThisDevice = Device::kEmulator;
#else
constexpr Device kThisDevice = Device::kGpu;
#endif

enum class Repeatable { kNo, kYes };

/// @tparam kUnsupported `const char* (const A&)`: why these sizes cannot be run, or nullptr.
/// @tparam kLaunch `cudaError_t (const A&, cudaStream_t)`: starts the kernel, does not wait, never exits.
template <class A, auto kUnsupported, auto kLaunch>
struct Register {
  Register(const char* name, const char* summary, Accuracy accuracy, Repeatable repeatable,
           std::source_location where = std::source_location::current()) {
    register_rung({stage_of<A>(), kThisDevice, name, summary, accuracy, repeatable == Repeatable::kYes,
                   where.file_name(),
                   [](const Args& args) -> const char* { return kUnsupported(std::get<A>(args)); },
                   [](const Args& args, void* stream) -> int {
                     return kLaunch(std::get<A>(args), static_cast<cudaStream_t>(stream));
                   }});
  }
};

}  // namespace dsa
