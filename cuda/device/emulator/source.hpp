/// @file source.hpp
/// From an instruction's address to the kernel's source: lines for verdicts, names for barriers.
#pragma once

#include <string>

namespace dsa::emulator {

/// "04_warp_specialized.cu:123 (consume)": the innermost inlined frame outside cuda/device, found with addr2line from
/// binutils (which g++ needs, so it is there) and the debug information of the program; "" when unknown. Slow; for
/// verdicts only.
std::string source_line(const void* pc);

/// " at 02_tensor_core.cu:88 (consume)", or "" when unknown or null.
std::string where(const void* pc);

/// The text of the line of source that source_line() names, without indentation; "" when unknown.
std::string source_text(const void* pc);

}  // namespace dsa::emulator
