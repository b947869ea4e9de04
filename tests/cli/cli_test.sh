#!/usr/bin/env bash
# The command line as a user meets it: exit statuses, messages, and what is left behind.
# usage: cli_test.sh DSA GOLDEN_FOLDER
set -uo pipefail
dsa=$1 golden=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0

# expect STATUS PATTERN COMMAND... : the exit status, and a line of the output that matches PATTERN.
expect() {
  local status=$1 pattern=$2 output got
  shift 2
  output=$(timeout 60 "$@" 2>&1)
  got=$?
  if [ $got -eq "$status" ] && grep -qE -- "$pattern" <<<"$output"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    printf 'FAILED: %s\n  status %d, expected %d; output should match: %s\n%s\n' "$*" $got "$status" "$pattern" "$output"
  fi
}
# absent FILE : nothing was left there.
absent() {
  if [ -e "$1" ]; then failed=$((failed + 1)); echo "FAILED: $1 was left behind"; else passed=$((passed + 1)); fi
}
same() {
  if cmp -s "$1" "$2"; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED: $1 and $2 differ"; fi
}
# header JSON [DATA_BYTES] > FILE : a safetensors file with this header and so many zero bytes behind it.
header() {
  local length=${#1} i
  for i in 0 1 2 3 4 5 6 7; do printf "\\x$(printf %02x $((length >> (8 * i) & 255)))"; done
  printf %s "$1"
  head -c "${2:-0}" /dev/zero
}

forward=$golden/sparse_mla_fwd_basic.safetensors
topk=$golden/topk_windows_k64.safetensors

# ---- What works --------------------------------------------------------------------------------------------------
expect 0 'sparse_mla_fwd +01_naive +.*emulator' "$dsa" list
expect 0 'PASSED +sparse_mla_fwd/reference' "$dsa" check "$forward"
expect 0 '^1 passed, 0 incorrect' "$dsa" check "$forward" --step 01_naive --device emulator
expect 0 '' "$dsa" run sparse_mla_fwd --in "$forward" --out "$work/reference.safetensors"
expect 0 '' "$dsa" run sparse_mla_fwd --in "$forward" --out "$work/again.safetensors" --step reference --device cpu
same "$work/reference.safetensors" "$work/again.safetensors"
expect 0 '' "$dsa" run sparse_mla_fwd --in "$forward" --out "$work/naive.safetensors" --step 01_naive --device emulator
expect 0 '' "$dsa" run topk --in "$topk" --out "$work/topk.safetensors" --deterministic 1 --topk 7
expect 0 'Usage' "$dsa" --help
expect 0 ' 147,456$|has a sanitizer' "$dsa" explain quantize 01_naive --json "$work/explain.json"
expect 0 '"modelled_clocks": 0' cat "$work/explain.json"
expect 0 'launch 2 of 3: grid 320, 192 threads' "$dsa" explain sparse_mla_bwd 01_naive --case small_addends

# ---- Bad command lines: 2, and the message says what exists --------------------------------------------------------
expect 2 'subcommand' "$dsa"
expect 2 'unknown stage .attention.*sparse_mla_fwd' "$dsa" run attention --in "$forward" --out "$work/out"
expect 2 'unknown step .07_magic.*01_naive' "$dsa" run topk --in "$topk" --out "$work/out" --step 07_magic
expect 2 'unknown device .tpu.*emulator' "$dsa" run topk --in "$topk" --out "$work/out" --device tpu
expect 2 'unknown schedule' "$dsa" check --device emulator --schedule sideways
expect 2 '--frobnicate' "$dsa" check --frobnicate
expect 2 'does not belong to' "$dsa" run topk --in "$topk" --out "$work/out" --sm_scale 1
expect 2 'topk' "$dsa" run topk --in "$topk" --out "$work/out" --topk 0
expect 2 'topk' "$dsa" run topk --in "$topk" --out "$work/out" --topk -5
expect 2 'topk' "$dsa" run topk --in "$topk" --out "$work/out" --topk 3.5
expect 2 'kv_stride' "$dsa" run sparse_mla_fwd --in "$forward" --out "$work/out" --kv_stride 0
expect 2 'unknown stage' "$dsa" explain attention 01_naive
expect 2 'unknown step .07_magic.*01_naive' "$dsa" explain topk 07_magic
expect 2 'no kernel' "$dsa" explain topk reference
expect 2 'unknown step .07_magic.*01_naive' "$dsa" bench --stage topk --step 01_naive --step 07_magic
expect 2 'reference is not timed' "$dsa" bench --step reference
expect 2 'no case of topk has .square.*random' "$dsa" explain topk 01_naive --case square
expect 2 'to draw' "$dsa" explain quantize 01_naive --svg "$work/out"
expect 2 'no_such_folder' "$dsa" explain quantize 01_naive --json "$work/no_such_folder/out"
absent "$work/out"

# ---- Malformed files: 2, file and tensor named, nothing written -----------------------------------------------------
bad() {  # bad NAME PATTERN < file contents
  cat >"$work/$1.safetensors"
  expect 2 "$1.safetensors.*$2" "$dsa" run sparse_mla_fwd --in "$work/$1.safetensors" --out "$work/$1.out"
  absent "$work/$1.out"
}
expect 2 'no_such_file' "$dsa" run topk --in "$work/no_such_file" --out "$work/out"
bad empty '' < <(:)
bad short '' < <(head -c 5 "$forward")
bad truncated '' < <(head -c 1000 "$forward")
bad truncated_data '' < <(head -c 200000 "$forward")
bad header_of_2_to_the_60 '' < <(printf '\0\0\0\0\0\0\0\x10{}')
bad not_a_tensor 'q' < <(header '{"q": 3}')
bad not_json '' < <(header 'not json')
bad unknown_dtype "q.*F64" < <(header '{"q":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}}' 8)
bad wrong_size "q" < <(header '{"q":{"dtype":"F32","shape":[4],"data_offsets":[0,8]}}' 8)
bad past_the_end "q" < <(header '{"q":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}' 4)
bad backwards "q" < <(header '{"q":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}' 8)
bad negative "q" < <(header '{"q":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}' 8)
bad overflow "q" < <(header '{"q":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}}' 8)
bad overlap "(q|kv).*" < <(header '{"kv":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"q":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}' 12)
bad missing "kv" < <(header '{"q":{"dtype":"BF16","shape":[1,8,576],"data_offsets":[0,9216]}}' 9216)
bad wrong_dtype "q.*F32" < <(header '{"q":{"dtype":"F32","shape":[1,1,576],"data_offsets":[0,2304]},"kv":{"dtype":"BF16","shape":[1,576],"data_offsets":[2304,3456]},"indices":{"dtype":"I32","shape":[1,1],"data_offsets":[3456,3460]}}' 3460)
bad wrong_shape "q.*575" < <(header '{"q":{"dtype":"BF16","shape":[1,1,575],"data_offsets":[0,1150]},"kv":{"dtype":"BF16","shape":[1,576],"data_offsets":[1150,2302]},"indices":{"dtype":"I32","shape":[1,1],"data_offsets":[2302,2306]}}' 2306)

# ---- Empty problems: the documented empty result ---------------------------------------------------------------------
header '{"q":{"dtype":"BF16","shape":[0,4,576],"data_offsets":[0,0]},"kv":{"dtype":"BF16","shape":[1,576],"data_offsets":[0,1152]},"indices":{"dtype":"I32","shape":[0,3],"data_offsets":[1152,1152]}}' 1152 >"$work/no_queries.safetensors"
header '{"q":{"dtype":"BF16","shape":[1,4,576],"data_offsets":[0,4608]},"kv":{"dtype":"BF16","shape":[0,576],"data_offsets":[4608,4608]},"indices":{"dtype":"I32","shape":[1,3],"data_offsets":[4608,4620]}}' 4620 >"$work/no_rows.safetensors"
for device in cpu emulator; do
  expect 0 '' "$dsa" run sparse_mla_fwd --in "$work/no_queries.safetensors" --out "$work/no_queries.$device" --device $device
  expect 0 '' "$dsa" run sparse_mla_fwd --in "$work/no_rows.safetensors" --out "$work/no_rows.$device" --device $device
done
same "$work/no_queries.cpu" "$work/no_queries.emulator"
same "$work/no_rows.cpu" "$work/no_rows.emulator"

# ---- A failed run damages nothing --------------------------------------------------------------------------------------
cp "$work/reference.safetensors" "$work/kept.safetensors"
expect 2 '' "$dsa" run sparse_mla_fwd --in "$work/truncated.safetensors" --out "$work/kept.safetensors"
same "$work/reference.safetensors" "$work/kept.safetensors"
expect 2 'no_such_folder' "$dsa" run sparse_mla_fwd --in "$forward" --out "$work/no_such_folder/out"
if [ -n "$(find "$work" -mindepth 1 -name '*tmp*' )" ]; then failed=$((failed + 1)); echo "FAILED: temporary files left"; fi

# ---- Checks that must fail: status 1 ------------------------------------------------------------------------------------
# Another softmax scale than the one that the expected results were computed with.
expect 1 'INCORRECT.*sparse_mla_fwd_basic' "$dsa" check "$forward" --sm_scale 0.05
expect 1 'INCORRECT.*sparse_mla_fwd/01_naive' "$dsa" check "$forward" --sm_scale 0.05 --step 01_naive --device emulator

# ---- A GPU that is not there: status 4 -----------------------------------------------------------------------------------
status=0
"$dsa" check "$topk" --device gpu >/dev/null 2>&1 || status=$?
if [ $status -eq 4 ]; then
  expect 4 'no gpu here' "$dsa" run topk --in "$topk" --out "$work/gpu.out" --device gpu
  absent "$work/gpu.out"
fi

echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
