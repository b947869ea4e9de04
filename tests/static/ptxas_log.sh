#!/usr/bin/env bash
# Compiler launcher for kernel files: runs the compiler and keeps what ptxas says beside the object file, as
# <object>.ptxas.txt, for the guard (ptxas_guard.cmake). The compiler's exit status and output pass through.
set -uo pipefail
object=""
previous=""
for argument in "$@"; do
  [ "$previous" = "-o" ] && object=$argument
  previous=$argument
done
if [ -z "$object" ]; then exec "$@"; fi
"$@" 2>"$object.ptxas.txt" >"$object.ptxas.out"
status=$?
# Only problems are shown: the resource report of every kernel would bury them.
grep -v -e '^ptxas info' -e '^ *[0-9]* bytes stack frame' -e '^$' "$object.ptxas.txt" >&2
cat "$object.ptxas.out" && rm -f "$object.ptxas.out"
exit $status
