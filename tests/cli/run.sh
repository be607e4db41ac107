#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# rapt run on small files whose results are known: one key gives its value row (N11), all orders of memory are equal
# (S1, S14), and wrong files are refused by name (E3).
. "$(dirname "$0")/lib.sh"

# q, k: [1,1,2,1] zeros. v: [1,1,2,2] = 1 2 / 3 4, so that every row without a mask is their mean, 2 3.
printf '\0\0\0\0\0\0\0\0' >"$tmp/zero2"
printf '\0\0\200\077\0\0\0\100\0\0\100\100\0\0\200\100' >"$tmp/1234"
printf '\0\0\200\077\0\0\100\100\0\0\0\100\0\0\200\100' >"$tmp/1324"
printf '\0\0\0\100\0\0\100\100\0\0\0\100\0\0\100\100' >"$tmp/2323"
printf '\0\0\200\077\0\0\0\100\0\0\0\100\0\0\100\100' >"$tmp/1223"
printf '\001\0\0\001' >"$tmp/eye"
shape1="'shape': (1, 1, 2, 1), }"
shape2="'shape': (1, 1, 2, 2), }"
npy "$tmp/q.npy" "{'descr': '<f4', 'fortran_order': False, $shape1" "$tmp/zero2"
npy "$tmp/v.npy" "{'descr': '<f4', 'fortran_order': False, $shape2" "$tmp/1234"
npy "$tmp/vf.npy" "{'descr': '<f4', 'fortran_order': True, $shape2" "$tmp/1324"
npy "$tmp/mask.npy" "{'descr': '|b1', 'fortran_order': False, 'shape': (2, 2), }" "$tmp/eye"
data() { tail -c 16 "$1" >"$1.data"; }

expect 0 ' -> .*sdpa|-> ' run --q "$tmp/q.npy" --k "$tmp/q.npy" --v "$tmp/v.npy" --out "$tmp/o.npy" --lse "$tmp/l.npy"
out_empty
data "$tmp/o.npy"
same_bytes "$tmp/o.npy.data" "$tmp/2323"
expect 0 '' run --q "$tmp/q.npy" --k "$tmp/q.npy" --v "$tmp/vf.npy" --out "$tmp/of.npy"
same_bytes "$tmp/o.npy" "$tmp/of.npy"
expect 0 '' run --q "$tmp/q.npy" --k "$tmp/q.npy" --v "$tmp/v.npy" --mask "$tmp/mask.npy" --out "$tmp/om.npy"
data "$tmp/om.npy"
same_bytes "$tmp/om.npy.data" "$tmp/1234"
expect 0 '' run --q "$tmp/q.npy" --k "$tmp/q.npy" --v "$tmp/v.npy" --out "$tmp/oc.npy" causal require=ref
data "$tmp/oc.npy"
same_bytes "$tmp/oc.npy.data" "$tmp/1223"
expect 0 '^\{"schema":"rapt.decision/1"' run --q "$tmp/q.npy" --k "$tmp/q.npy" --v "$tmp/v.npy" --out "$tmp/o.npy" --json
one_line

# the same arrays as safetensors, layout bshd; out and lse in one file
{ cat "$tmp/zero2" "$tmp/1234"; } >"$tmp/all"
safetensors "$tmp/a.safetensors" '{"q":{"dtype":"F32","shape":[1,2,1,1],"data_offsets":[0,8]},"v":{"dtype":"F32","shape":[1,2,1,2],"data_offsets":[8,24]},"__metadata__":{"a":"b"}}' "$tmp/all"
a="$tmp/a.safetensors"
expect 0 '' run --q "$a" --k "$a:q" --v "$a" --out "$tmp/o.safetensors" --lse "$tmp/o.safetensors" layout=bshd
expect 0 '' run --q "$a" --k "$a:q" --v "$tmp/o.safetensors:out" --out "$tmp/again.npy" layout=bshd
data "$tmp/again.npy"
same_bytes "$tmp/again.npy.data" "$tmp/2323"

# a call that no row can run: reasons on stdout, nothing written
rm -f "$tmp/no.npy"
expect 1 'REFUSED' run --q "$tmp/q.npy" --k "$tmp/q.npy" --v "$tmp/v.npy" --out "$tmp/no.npy" require=fa2
in_out 'AVAIL'
[ ! -e "$tmp/no.npy" ] || wrong "a refused call wrote its output"
expect 1 'SHAPE' run --q "$tmp/q.npy" --k "$tmp/v.npy" --v "$tmp/v.npy" --out "$tmp/no.npy"

# usage
expect 2 '--k: is missing' run --q "$tmp/q.npy" --v "$tmp/v.npy" --out "$tmp/no.npy"
expect 2 '--out: is missing' run --q "$tmp/q.npy" --k "$tmp/q.npy" --v "$tmp/v.npy"
expect 2 "TOKEN 'b1': sizes come from the files" run --q "$tmp/q.npy" --k "$tmp/q.npy" --v "$tmp/v.npy" --out "$tmp/no.npy" b1
expect 2 "TOKEN 'mask=bool:2x2'" run --q "$tmp/q.npy" --k "$tmp/q.npy" --v "$tmp/v.npy" --out "$tmp/no.npy" mask=bool:2x2
expect 2 "--lse .*place of --out" run --q "$tmp/q.npy" --k "$tmp/q.npy" --v "$tmp/v.npy" --out "$tmp/no.npy" --lse "$tmp/no.npy"
expect 2 "--dq .*not in this version" run --q "$tmp/q.npy" --k "$tmp/q.npy" --v "$tmp/v.npy" --out "$tmp/no.npy" --dq "$tmp/dq.npy"
expect 2 "--kv-len .*want one axis of 1|--kv-len .*is fp32, want int64 or int32" run --q "$tmp/q.npy" --k "$tmp/q.npy" --v "$tmp/v.npy" --kv-len "$tmp/q.npy" --out "$tmp/no.npy"
expect 2 "--q 'q.bin': want FILE.npy" run --q q.bin --k "$tmp/q.npy" --v "$tmp/v.npy" --out "$tmp/no.npy"
expect 2 "has no tensor 'k', want one of: q v" run --q "$a" --k "$a" --v "$a" --out "$tmp/no.npy" layout=bshd

# bf16: only .safetensors
printf '\0\0\0\0\200\077\0\100\100\100\200\100' >"$tmp/bf"
safetensors "$tmp/b.safetensors" '{"q":{"dtype":"BF16","shape":[1,1,2,1],"data_offsets":[0,4]},"v":{"dtype":"BF16","shape":[1,1,2,2],"data_offsets":[4,12]}}' "$tmp/bf"
b="$tmp/b.safetensors"
expect 2 "is bf16, for which .npy has no type: name a .safetensors file" run --q "$b" --k "$b:q" --v "$b" --out "$tmp/no.npy"
expect 0 '-> ' run --q "$b" --k "$b:q" --v "$b" --out "$tmp/bo.safetensors"
finish
