/// @file ladder_main.cpp
/// The program `ladder`: `dsa ladder` under a shorter name.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "../cuda/harness/tensor.hpp"
#include "ladder.hpp"

int main(int argc, char** argv) {
  CLI::App app{"Prints the ladder of a stage, or of all, from a results file", "ladder"};
  dsa::bench::add_ladder_options(app);
  try {
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const dsa::harness::BadInput& error) {
    std::fprintf(stderr, "ladder: %s\n", error.what());
    return 2;
  }
}
