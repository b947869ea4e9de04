/// @file staged.hpp
/// The program of one rung: check it, time it, print its row of the ladder beside the rung before it.
#pragma once

namespace dsa::bench {

/// `main` of the binary <stage>_<rung>. Options: --case SUBSTRING, --regime, --seconds.
/// @return exit status: 0 right, 1 wrong, 2 bad options
int run_staged(const char* stage, const char* rung, int argc, char** argv);

}  // namespace dsa::bench
