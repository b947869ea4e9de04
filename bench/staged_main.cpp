/// @file staged_main.cpp
/// Compiled once per kernel file, which CMake names in DSA_STAGE and DSA_RUNG.
#include "staged.hpp"

int main(int argc, char** argv) {
  return dsa::bench::run_staged(DSA_STAGE, DSA_RUNG, argc, argv);
}
