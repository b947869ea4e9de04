#!/usr/bin/env bash
# solve_exercises.sh FOLDER: writes every exercise of walkthrough/exercises there, solved as its chapter solves it, so that
# the build can check that the printed solutions are right.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)

# emulator_<N>_<what>.cu holds a planted bug: diff number N of the chapter repairs it.
repair() {
  local exercise=$1 name chapter=$root/walkthrough/03_no_gpu_needed.md diff text before after rest
  name=$(basename "$exercise")
  diff=$(awk -v n="${name:9:1}" '/^```/ {show = /^```diff/ && ++count == n; next} show' "$chapter")
  before=$(sed -n 's/^[- ]//p' <<<"$diff")
  after=$(sed -n 's/^[+ ]//p' <<<"$diff")
  text=$(<"$exercise")
  rest=${text#*"$before"}
  [ -n "$before" ] && [ "$rest" != "$text" ] && [[ $rest != *"$before"* ]] || {
    echo "$name: the lines before the repair in $chapter should be there once" >&2
    return 1
  }
  printf '%s\n' "${text/"$before"/"$after"}"
}

# <stage>_<NN>_<what>.cu has a hole; walkthrough/<stage>/<NN>_*.md holds what belongs there.
fill() {
  local exercise=$1 name number chapter solution
  name=$(basename "$exercise")
  number=$(grep -oE '_[0-9]{2}_' <<<"$name" | head -n 1)
  chapter=$(echo "$root/walkthrough/${name%%"$number"*}/${number:1:2}"_*.md)
  solution=$(awk '/<summary>A solution/ {look = 1} look && /^```cpp/ {show = 1; next} show && /^```/ {exit} show' "$chapter")
  [ -n "$solution" ] || { echo "$chapter holds no solution for $name" >&2; return 1; }
  SOLUTION=$solution awk '
    /---- your code/ {print ENVIRON["SOLUTION"]; hole = 1}
    !hole {print}
    /---- end of your code/ {hole = 0; holes++}
    END {exit holes != 1}' "$exercise" || { echo "$name: expected one hole" >&2; return 1; }
}

for exercise in "$root"/walkthrough/exercises/*.cu; do
  solve=fill
  [[ $exercise != */emulator_* ]] || solve=repair
  $solve "$exercise" >"$1/$(basename "$exercise")"
done
