# SPDX-License-Identifier: Apache-2.0
# Sourced by the scripts of this folder: SCRIPT RAPT SOURCE_DIR. Every script ends with `finish`.
set -u
LC_ALL=C
export LC_ALL
rapt=$1
source_dir=$2
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
for name in REQUIRE PREFER FORBID MEMORY_LIMIT REF_LIMIT ISA VERIFY LOG; do unset "RAPT_$name"; done
checks=0
bad=0

wrong() {
  bad=$((bad + 1))
  echo "FAILED: $*" >&2
}

# expect CODE PATTERN ARGUMENTS..: the exit code, and an extended regular expression in stdout or stderr together.
expect() {
  code=$1
  pattern=$2
  shift 2
  checks=$((checks + 1))
  "$rapt" "$@" >"$tmp/out" 2>"$tmp/err"
  got=$?
  if [ "$got" -ne "$code" ]; then
    wrong "rapt $*: exit code $got, want $code: $(head -c 400 "$tmp/err")"
  elif ! cat "$tmp/out" "$tmp/err" | grep -Eq -- "$pattern"; then
    wrong "rapt $*: no '$pattern' in: $(head -c 300 "$tmp/out") $(head -c 400 "$tmp/err")"
  fi
}

# in_out PATTERN, not_in_out PATTERN, err_empty: about the output of the last expect.
in_out() {
  checks=$((checks + 1))
  grep -Eq -- "$1" "$tmp/out" || wrong "no '$1' on stdout: $(head -c 300 "$tmp/out")"
}
not_in_out() {
  checks=$((checks + 1))
  if grep -Eq -- "$1" "$tmp/out"; then wrong "'$1' is on stdout: $(head -c 300 "$tmp/out")"; fi
}
out_empty() {
  checks=$((checks + 1))
  if [ -s "$tmp/out" ]; then wrong "stdout is not empty: $(head -c 300 "$tmp/out")"; fi
}
one_line() {
  checks=$((checks + 1))
  if [ "$(wc -l <"$tmp/out")" -ne 1 ]; then wrong "want one document on stdout: $(head -c 300 "$tmp/out")"; fi
}
same_bytes() {
  checks=$((checks + 1))
  cmp "$1" "$2" >/dev/null 2>&1 || wrong "$1 and $2 differ"
}

# The bytes of a little endian number: le N BYTES.
le() {
  n=$1
  i=0
  while [ $i -lt "$2" ]; do
    printf "\\$(printf %03o $((n & 255)))"
    n=$((n >> 8))
    i=$((i + 1))
  done
}

# npy FILE HEADER DATA_BYTES_FILE: a version 1.0 file with that header text.
npy() {
  {
    printf '\223NUMPY\001\000'
    le "${#2}" 2
    printf '%s' "$2"
    cat "$3"
  } >"$1"
}

# safetensors FILE HEADER DATA_FILE
safetensors() {
  {
    le "${#2}" 8
    printf '%s' "$2"
    cat "$3"
  } >"$1"
}

finish() {
  echo "$checks checks, $bad failed"
  [ "$checks" -gt 0 ] && [ "$bad" -eq 0 ]
  exit
}
