#!/usr/bin/env bash
# The tour: `bash walkthrough/run.sh` on a fresh Debian 12 or Ubuntu 24.04.
#
#   bash walkthrough/run.sh [OPTION...]      options go to `dsa pipeline`, for example --s_q 1024
#
# Builds the programs in build/, lists the ladders, and runs the whole of DeepSeek Sparse Attention: lightning indexer,
# top-k selector, sparse MLA forward, sparse MLA backward. With a Hopper GPU at the sizes of DeepSeek-V3.2, timed, and
# with the JSON of the measurements in build/pipeline.json; without one on the emulator, small, every rung of every
# stage. Sampled rows of every stage are compared with the float64 reference.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
source "$root/walkthrough/setup.sh"
cd "$root"

need "${build_packages[@]}"
say "configure and build"
configure build -DCMAKE_BUILD_TYPE=Release "-DDSA_TESTS=$(present doctest-dev && echo ON || echo OFF)"
build build

say "the ladders"
build/bin/dsa list

say "indexer -> top-k -> forward -> backward"
status=0
build/bin/dsa pipeline --all --json build/pipeline.json "$@" || status=$?

cat <<'TEXT'

What next:
  build/bin/dsa check --device emulator        every rung on every case (--device gpu with a Hopper GPU)
  build/bin/sparse_mla_fwd_01_naive            one rung on its own: checked, timed, placed in the ladder
  walkthrough/00_how_to_read.md                the chapters start here
  walkthrough/your_kernel/README.md            a kernel of your own, with one new file
TEXT
exit $status
