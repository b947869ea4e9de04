#!/usr/bin/env bash
# solve_exercises.sh FOLDER: writes every exercise of walkthrough/exercises there, with its hole filled by the solution
# that stands in its chapter, so that the build can check that the printed solutions are right.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
for exercise in "$root"/walkthrough/exercises/*.cu; do
  name=$(basename "$exercise")
  # <stage>_<NN>_<what>.cu belongs to walkthrough/<stage>/<NN>_*.md.
  number=$(grep -oE '_[0-9]{2}_' <<<"$name" | head -n 1)
  chapter=$(echo "$root/walkthrough/${name%%"$number"*}/${number:1:2}"_*.md)
  solution=$(awk '/<summary>A solution/ {look = 1} look && /^```cpp/ {show = 1; next} show && /^```/ {exit} show' "$chapter")
  [ -n "$solution" ] || { echo "$chapter holds no solution for $name" >&2; exit 1; }
  SOLUTION=$solution awk '
    /---- your code/ {print ENVIRON["SOLUTION"]; hole = 1}
    !hole {print}
    /---- end of your code/ {hole = 0; holes++}
    END {exit holes != 1}' "$exercise" >"$1/$name" || { echo "$name: expected one hole" >&2; exit 1; }
done
