/// @file tables.hpp
/// Tables in Markdown files, generated from the results file between two markers, each on a line of its own:
///
///     <!-- results:begin stage=sparse_mla_fwd -->             all cases of a stage
///     <!-- results:begin stage=topk case=rows:4096/n:32768/topk:2048 regime=burst -->
///     <!-- results:begin summary -->                          one line per stage
///     <!-- results:end -->
///
/// `regime` is `sustained` unless said. What stands between the markers is replaced as a whole.
#pragma once

#include <string>

#include "ladder.hpp"

namespace dsa::bench {

/// `document` with every table filled in. Throws harness::BadInput with "source:line: " for an unknown stage,
/// key, regime or case, and for a begin or end without its partner.
std::string fill_tables(const std::string& document, const std::string& source, const Results& results,
                        const Registry& registry);

/// The first line in which two texts differ: "line 12:\n- old\n+ new\n"; empty if they are equal.
std::string first_difference(const std::string& old_text, const std::string& new_text);

}  // namespace dsa::bench
