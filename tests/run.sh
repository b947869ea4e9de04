#!/usr/bin/env bash
# The tests: `bash tests/run.sh` on a fresh Debian 12 or Ubuntu 24.04, with or without nvcc, with or without a GPU.
#
#   bash tests/run.sh [--quick] [--no-docs]
#
# Builds in build/, build-asan/ and build-tsan/ beside this folder's parent, and runs
#   1. everything with the ordinary build: reference, harness, emulator, ptxas guard, documentation site, and the
#      GPU tests when there is a Hopper GPU;
#   2. the harness and the emulated kernels under the address and undefined-behaviour sanitizers, together with a
#      copy of walkthrough/your_kernel and the solved exercises of the chapters, built as a reader would build them;
#   3. the emulated kernels under the thread sanitizer.
# --quick runs the first part only; --no-docs leaves the documentation out.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
source "$root/walkthrough/setup.sh"
cd "$root"

quick=no docs=ON
for option in "$@"; do
  case $option in
    --quick) quick=yes ;;
    --no-docs) docs=OFF ;;
    *) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 2 ;;
  esac
done

need "${build_packages[@]}" "${test_packages[@]}"
if [ $docs = ON ] && ! need "${docs_packages[@]}"; then
  echo "Without them the documentation cannot be tested; use --no-docs to leave it out." >&2
  exit 1
fi

failed=()
# lane NAME FOLDER "TARGET..." CTEST-OPTION... -- CMAKE-OPTION...
lane() {
  local name=$1 folder=$2 targets=$3 ctest_options=()
  shift 3
  while [ "$1" != -- ]; do ctest_options+=("$1"); shift; done
  shift
  say "$name: configure and build"
  # DSA_TESTS: walkthrough/run.sh may have configured the same folder without them.
  if ! { configure "$folder" -DDSA_TESTS=ON "$@" && build "$folder" --target $targets; }; then failed+=("$name (build)"); return; fi
  say "$name: test"
  ctest --test-dir "$folder" --output-on-failure --no-tests=error -j "$(nproc)" "${ctest_options[@]}" || failed+=("$name")
}

lane "tests" build all -- -DCMAKE_BUILD_TYPE=Release -DDSA_DOCS=$docs
if [ $quick = no ]; then
  mine=$(mktemp -d)
  trap 'rm -rf "$mine"' EXIT
  sed 's/"mine"/"my_kernel"/' walkthrough/your_kernel/template.cu >"$mine/my_kernel.cu"
  bash tests/solve_exercises.sh "$mine"
  lane "address sanitizer, your own kernel, the exercises" build-asan "dsa harness_tests emulator_tests probe_emulator index_topk_exact" -L 'harness|emulator|golden|cli' -E 'round_robin|random_2' -- \
    -DCMAKE_BUILD_TYPE=RelWithDebInfo -DDSA_CUDA=OFF -DDSA_SANITIZE=address "-DDSA_USER_KERNELS=$mine"
  lane "thread sanitizer" build-tsan "dsa emulator_tests probe_emulator index_topk_exact" -L 'emulator|race' -E 'round_robin|random_2' -- \
    -DCMAKE_BUILD_TYPE=RelWithDebInfo -DDSA_CUDA=OFF -DDSA_SANITIZE=thread
fi

if [ ${#failed[@]} -gt 0 ]; then
  printf '\nFAILED: %s\n' "${failed[@]}"
  exit 1
fi
printf '\nAll tests passed.\n'
