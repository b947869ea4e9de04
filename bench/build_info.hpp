/// @file build_info.hpp
/// Which build, and when: the part of a results file's context that does not depend on the device.
#pragma once

#include <map>
#include <string>

namespace dsa::bench {

/// Adds "date" (UTC, now) and, where it was known at build time, "commit".
void add_build_context(std::map<std::string, std::string>& context);

}  // namespace dsa::bench
