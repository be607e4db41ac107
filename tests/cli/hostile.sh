#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Files that lie: both readers answer with exit code 2 and a word, never with a crash (E3, E4).
. "$(dirname "$0")/lib.sh"
printf '\0\0\0\0\0\0\0\0' >"$tmp/8"
: >"$tmp/0"
good="'shape': (1, 1, 2, 1), }"
npy "$tmp/ok.npy" "{'descr': '<f4', 'fortran_order': False, $good" "$tmp/8"
ok="$tmp/ok.npy"
expect 0 '' run --q "$ok" --k "$ok" --v "$ok" --out "$tmp/o.npy"

# refused PATTERN FILE
refused() {
  expect 2 "--q .*$1" run --q "$2" --k "$ok" --v "$ok" --out "$tmp/o.npy"
  out_empty
}
bad() { # PATTERN HEADER [DATA]
  npy "$tmp/x.npy" "$2" "${3:-$tmp/8}"
  refused "$1" "$tmp/x.npy"
}
bad "descr '>f4': is big endian" "{'descr': '>f4', 'fortran_order': False, $good"
bad "no bf16, put bf16 into .safetensors" "{'descr': '|V2', 'fortran_order': False, $good"
bad "Python objects" "{'descr': '|O', 'fortran_order': False, $good"
bad "want one of <f2" "{'descr': '<c8', 'fortran_order': False, $good"
bad "records are not read" "{'descr': [('a', '<f4')], 'fortran_order': False, $good"
bad "header: byte" "{'descr': '<f4', 'fortran_order': Maybe, $good"
bad "header: byte" "{'descr': '<f4', 'fortran_order': False, 'shape': (1, -1, 2, 1), }"
bad "header: byte" "{'descr': '<f4', 'fortran_order': False, }"
bad "given twice" "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, $good"
bad "is not known" "{'colour': '<f4', 'fortran_order': False, $good"
bad "more than 8 axes" "{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,2), }"
bad "leaves 64 bits" "{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4, 2, 1), }"
bad "header: byte" "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999, 1, 2, 1), }"
bad "needs 4000000000 bytes of data, the file has 8" "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 1000000000, 1), }"
bad "needs 8 bytes of data, the file has 0" "{'descr': '<f4', 'fortran_order': False, $good" "$tmp/0"
bad "has 1 axes, want 4" "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }"
bad "records are not read" "{'descr': '<f4"
bad "header: byte" "{'descr': '<f4'"
printf 'not a file of arrays' >"$tmp/y.npy"
refused "no .npy file" "$tmp/y.npy"
printf '\223NUMPY\011\000\010\000abcdefgh' >"$tmp/y.npy"
refused "header version 9.0" "$tmp/y.npy"
printf '\223NUMPY\002\000\377\377\377\177abcd' >"$tmp/y.npy"
refused "header length 2147483647" "$tmp/y.npy"
printf '\223NUMPY\001\000\377\377{}' >"$tmp/y.npy"
refused "header length 65535" "$tmp/y.npy"
refused "cannot be read" "$tmp/none.npy"
mkdir "$tmp/dir.npy"
refused "is no regular file" "$tmp/dir.npy"
# nobody writes into the FIFO: it is not waited for
mkfifo "$tmp/fifo.npy" "$tmp/fifo.safetensors"
refused "is no regular file" "$tmp/fifo.npy"
refused "is no regular file" "$tmp/fifo.safetensors"
expect 2 "FILE .*no regular file" cases "$tmp/fifo.npy"
expect 2 "--facts .*no regular file" explain 'fp32 b1 h1 q1 k1 d1' --facts "$tmp/fifo.npy"
expect 2 "--out .*cannot be written" run --q "$ok" --k "$ok" --v "$ok" --out "$tmp/fifo.npy"
expect 2 "--out .*cannot be written" run --q "$ok" --k "$ok" --v "$ok" --out "$tmp/fifo.safetensors"
# every length of a good file, cut
size=$(wc -c <"$ok")
n=0
while [ $n -lt "$size" ]; do
  head -c $n "$ok" >"$tmp/cut.npy"
  expect 2 '--q ' run --q "$tmp/cut.npy" --k "$ok" --v "$ok" --out "$tmp/o.npy"
  n=$((n + 7))
done

st() { # PATTERN HEADER [DATA]
  safetensors "$tmp/x.safetensors" "$2" "${3:-$tmp/8}"
  refused "$1" "$tmp/x.safetensors:q"
}
q='"dtype":"F32","shape":[1,1,2,1]'
st "header line 1" 'nonsense'
st "want an object" '[1, 2]'
st "duplicate" "{\"q\":{$q,\"data_offsets\":[0,8]},\"q\":{$q,\"data_offsets\":[0,8]}}"
st "want dtype, shape and two" "{\"q\":{$q}}"
st "want dtype, shape and two" "{\"q\":3}"
st "dtype 'F7' is not read" '{"q":{"dtype":"F7","shape":[1,1,2,1],"data_offsets":[0,8]}}'
st "data_offsets 0,16" "{\"q\":{$q,\"data_offsets\":[0,16]}}"
st "data_offsets 8,16" "{\"q\":{$q,\"data_offsets\":[8,16]}}"
st "data_offsets -8,0" "{\"q\":{$q,\"data_offsets\":[-8,0]}}"
st "data_offsets 8,0" "{\"q\":{$q,\"data_offsets\":[8,0]}}"
st "header line 1" "{\"q\":{$q,\"data_offsets\":[0,18446744073709551616]}}"
st "negative" '{"q":{"dtype":"F32","shape":[1,1,-2,-1],"data_offsets":[0,8]}}'
st "no whole number" '{"q":{"dtype":"F32","shape":[1,1,2.5,1],"data_offsets":[0,8]}}'
st "leaves 64 bits" '{"q":{"dtype":"F32","shape":[4611686018427387904,4,2,1],"data_offsets":[0,8]}}'
st "at most 8" '{"q":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,2],"data_offsets":[0,8]}}'
st "overlap at byte 4" "{\"q\":{$q,\"data_offsets\":[0,8]},\"r\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}"
st "has no tensor 'q', want one of: r" "{\"r\":{$q,\"data_offsets\":[0,8]}}"
st "dtype 'U32' is not read" '{"q":{"dtype":"U32","shape":[1,1,2,1],"data_offsets":[0,8]}}'
# what another tensor is does not keep a good one from being read, as long as its place in the file is right
good="\"q\":{$q,\"data_offsets\":[0,8]}"
printf '\0\0\0\0\0\0\0\0\0' >"$tmp/9"
for other in '"dtype":"F6_E3M2","shape":[3],"data_offsets":[8,9]' '"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[8,9]'; do
  safetensors "$tmp/x.safetensors" "{$good,\"r\":{$other}}" "$tmp/9"
  expect 0 '' run --q "$tmp/x.safetensors:q" --k "$ok" --v "$ok" --out "$tmp/o.npy"
  refused "tensor 'r': (dtype 'F6_E3M2' is not read|shape has 9 axes)" "$tmp/x.safetensors:r"
done
st "overlap at byte 4" "{$good,\"r\":{\"dtype\":\"F6_E3M2\",\"shape\":[3],\"data_offsets\":[4,8]}}"
st "data_offsets 4,9" "{$good,\"r\":{\"dtype\":\"F6_E3M2\",\"shape\":[3],\"data_offsets\":[4,9]}}"
st "data_offsets -1,9" "{$good,\"r\":{\"dtype\":\"F6_E3M2\",\"shape\":[3],\"data_offsets\":[-1,9]}}"
st "negative" "{$good,\"r\":{\"dtype\":\"F6_E3M2\",\"shape\":[-3],\"data_offsets\":[8,8]}}"
deep=$(printf '%03000d' 0 | tr 0 '[')
st "header line 1" "{\"q\":$deep"
printf '\377\377\377\377\377\377\377\377{}' >"$tmp/y.safetensors"
refused "header length 18446744073709551615" "$tmp/y.safetensors"
printf '\020\0\0\0\0\0\0\0{}' >"$tmp/y.safetensors"
refused "header length 16" "$tmp/y.safetensors"
printf '{}' >"$tmp/y.safetensors"
refused "has no header" "$tmp/y.safetensors"
finish
