#!/usr/bin/env bash
# Everything that needs a Hopper GPU, in one call:
#
#   bash bench/gpu.sh FOLDER [PART...]
#
# PARTs, all by default, in this order:
#   probe      what single instructions do, compared with what the emulator does (tests/probe/h200.txt)
#   tests      every test of the build, the GPU ones and the large cases included
#   sanitize   compute-sanitizer (memcheck, initcheck, synccheck, racecheck) on the small cases of every rung
#   pipeline   indexer -> top-k -> forward -> backward at DeepSeek-V3.2 sizes
#   costs      what products, softmax and gathers cost alone and beside each other: costs.txt
#   profile    where each kernel of the pipeline spends its time, by ncu: profile.csv
#   bench      the ladder of every stage, with its yardsticks
#
# Writes FOLDER/summary.txt (one line per step), logs.tar.gz (what every step printed), and the measurements:
# pipeline.json and bench.json, which `docs/results/` keeps, and profile.csv. Every step has a time limit. Clocks and
# power are left as they are. BENCH_OPTIONS="--stage topk --append" narrows the last part.
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
out=${1:?usage: bash bench/gpu.sh FOLDER [PART...]}
shift
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(probe tests sanitize pipeline costs profile bench)
mkdir -p "$out"
out=$(cd "$out" && pwd)
logs=$(mktemp -d)
trap 'tar -czf "$out/logs.tar.gz" -C "$logs" . && rm -rf "$logs"' EXIT
cd "$root"
source walkthrough/setup.sh
need "${build_packages[@]}" "${test_packages[@]}" || exit 1

profile_metrics=(gpu__time_duration.sum sm__issue_active.avg.pct_of_peak_sustained_elapsed
  sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_elapsed l1tex__throughput.avg.pct_of_peak_sustained_elapsed
  l1tex__t_sector_hit_rate.pct lts__throughput.avg.pct_of_peak_sustained_elapsed
  dram__throughput.avg.pct_of_peak_sustained_elapsed)

failures=0
# step NAME SECONDS COMMAND... : runs with a time limit, keeps the output, notes the outcome.
step() {
  local name=$1 limit=$2 begin=$SECONDS status
  shift 2
  say "$name"
  timeout --kill-after=10 "$limit" "$@" >"$logs/$name.log" 2>&1
  status=$?
  tail -n 4 "$logs/$name.log"
  if [ $status -ne 0 ]; then failures=$((failures + 1)); tail -n 40 "$logs/$name.log"; fi
  printf '%-28s status %d, %d s\n' "$name" $status $((SECONDS - begin)) | tee -a "$out/summary.txt"
  return $status
}

# Whether a rung hands buffers back through a mbarrier or a barrier of part of the CTA, by itself, by a header of its own or,
# as all of index_topk, with the indexer's kernels.
hands_back() {
  local file=cuda/$1/$2.cu
  [ "$1" = index_topk ] || sed -n 's|^#include "\.\./\(common/.*\)"|cuda/\1|p' "$file" | xargs grep -qE 'mbarrier_|barrier_arrive' "$file"
}

nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.max.sm,power.draw,power.limit --format=csv | tee "$out/summary.txt"
step configure 120 cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DDSA_CUDA=ON || exit 1
step build 600 cmake --build build || exit 1
dsa=build/bin/dsa

for part in "${parts[@]}"; do
  case $part in
    probe)
      step probe 120 build/bin/probe_gpu && cp "$logs/probe.log" "$out/probe.txt" &&
        step probe-agrees 10 diff -I '^#' tests/probe/h200.txt "$out/probe.txt" ;;
    tests) step tests 900 ctest --test-dir build --output-on-failure --no-tests=error -j "$(nproc)" ;;
    sanitize)
      for tool in memcheck initcheck synccheck; do
        step "sanitize-$tool" 300 compute-sanitizer --tool "$tool" --error-exitcode 9 --print-limit 20 \
          "$dsa" check --device gpu --repeats 1
      done
      # racecheck takes it for a race when a buffer is handed back through a mbarrier or a barrier of part of the CTA: it says
      # so of four sound twins, too. So rungs that do this are listed with what it says; of the others it must say nothing.
      for twin in named elected mbarrier copies; do
        printf '%-28s %s\n' "racecheck of twin $twin" \
          "$(timeout 60 compute-sanitizer --tool racecheck build/bin/race_twins $twin 2>&1 | grep 'RACECHECK SUMMARY')" | tee -a "$out/summary.txt"
      done
      while read -r stage rung <&3; do
        race=(compute-sanitizer --tool racecheck --error-exitcode 9 --print-limit 20 "$dsa" check --device gpu --repeats 1 --stage "$stage" --step "$rung")
        if hands_back "$stage" "$rung"; then
          timeout 120 "${race[@]}" >"$logs/racecheck-$stage-$rung.log" 2>&1
          printf '%-28s %s\n' "racecheck $stage/$rung" "$(grep 'RACECHECK SUMMARY' "$logs/racecheck-$stage-$rung.log")" | tee -a "$out/summary.txt"
        else
          step "racecheck-$stage-$rung" 120 "${race[@]}"
        fi
      done 3< <("$dsa" list | awk '/gpu/ {print $1, $2}') ;;
    costs) step costs 60 build/bin/costs && cp "$logs/costs.log" "$out/costs.txt" ;;
    pipeline) step pipeline 300 "$dsa" pipeline --device gpu --json "$out/pipeline.json" ;;
    profile)
      # Shares of the peak rate of each unit, in per cent, and the L1 hit rate. Clocks are left alone.
      # A quarter of the queries: ncu runs every kernel once per group of metrics.
      step profile 300 ncu --clock-control none --csv --log-file "$out/profile.csv" --kernel-name-base demangled \
        --kernel-name 'regex:^(static |void )*dsa::' --metrics "$(IFS=,; echo "${profile_metrics[*]}")" \
        "$dsa" pipeline --device gpu --s_q 1024 ;;
    bench) step bench 560 "$dsa" bench --json "$out/bench.json" ${BENCH_OPTIONS:-} ;;
    *) echo "no part called $part" >&2; exit 2 ;;
  esac
done
say "summary"
cat "$out/summary.txt"
exit $((failures > 0))
