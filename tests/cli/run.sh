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
expect 0 ' -> ref [a-z0-9_]+( [a-z0-9]+)?, [0-9]+ threads?$' run --q "$tmp/q.npy" --k "$tmp/q.npy" --v "$tmp/v.npy" --out "$tmp/oc.npy" causal require=ref
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
[ ! -s "$tmp/err" ] || wrong "a refusal is on stderr too: $(head -c 300 "$tmp/err")"
expect 1 '^ARG for the arrays of these files$' run --q "$tmp/q.npy" --k "$tmp/v.npy" --v "$tmp/v.npy" --out "$tmp/no.npy"
in_out '^  fault      SHAPE: '
[ ! -s "$tmp/err" ] || wrong "a fault of the call is on stderr: $(head -c 300 "$tmp/err")"
# with --json every answer of exit 1 is one rapt.decision/1, every one of exit 2 one rapt.error/1
for tokens in require=fa2 require=nope; do
  expect 1 '^\{"schema":"rapt.decision/1","version":"[^"]+","status":"(REFUSED|ARG)",' run --q "$tmp/q.npy" --k "$tmp/q.npy" --v "$tmp/v.npy" --out "$tmp/no.npy" $tokens --json
  one_line
  in_out '"rows":\['
done
expect 1 '^\{"schema":"rapt.decision/1","version":"[^"]+","status":"ARG","error":\{"code":"SHAPE",.*"problem":null,.*"chosen":null,.*"rows":\[\]\}$' run --q "$tmp/q.npy" --k "$tmp/v.npy" --v "$tmp/v.npy" --out "$tmp/no.npy" --json
one_line
expect 2 '^\{"schema":"rapt.error/1","error":\{"argument":"TOKEN","value":"foo","text":"' run --q "$tmp/q.npy" --k "$tmp/q.npy" --v "$tmp/v.npy" --out "$tmp/no.npy" causal foo scale=1 --json
one_line
expect 2 "TOKEN 'foo': " run --q "$tmp/q.npy" --k "$tmp/q.npy" --v "$tmp/v.npy" --out "$tmp/no.npy" causal 'scale=1 foo' lse=1

# S3: one rank; the rows' axes are never guessed
npy "$tmp/q3.npy" "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2, 1), }" "$tmp/zero2"
expect 2 "--k '.*q.npy': has 4 axes, --q has 3, want one rank" run --q "$tmp/q3.npy" --k "$tmp/q.npy" --v "$tmp/v.npy" --out "$tmp/no.npy"
expect 2 "--v '.*v.npy': has 4 axes, --q has 3, want one rank" run --q "$tmp/q3.npy" --k "$tmp/q3.npy" --v "$tmp/v.npy" --out "$tmp/no.npy"
expect 0 '' run --q "$tmp/q3.npy" --k "$tmp/q3.npy" --v "$tmp/q3.npy" --out "$tmp/o3.npy"

# an output never takes an input's place, by whatever path
cp "$tmp/q.npy" "$tmp/keep.npy"
ln -s keep.npy "$tmp/soft.npy"
ln "$tmp/keep.npy" "$tmp/hard.npy"
for out in keep.npy ./keep.npy soft.npy hard.npy; do
  expect 2 "--out '.*$out': is the file of --q, which it would overwrite" run --q "$tmp/keep.npy" --k "$tmp/q.npy" --v "$tmp/v.npy" --out "$tmp/$out"
  expect 2 "--lse '.*$out': is the file of --q" run --q "$tmp/keep.npy" --k "$tmp/q.npy" --v "$tmp/v.npy" --out "$tmp/no.npy" --lse "$tmp/$out"
  same_bytes "$tmp/keep.npy" "$tmp/q.npy"
done
expect 2 "--out .*is the file of --k" run --q "$tmp/q.npy" --k "$a:q" --v "$tmp/v.npy" --out "$a:out"
expect 2 "--lse .*place of --out" run --q "$tmp/q.npy" --k "$tmp/q.npy" --v "$tmp/v.npy" --out "$tmp/no.npy" --lse "$tmp/./no.npy"
expect 2 "--lse .*place of --out" run --q "$tmp/q.npy" --k "$tmp/q.npy" --v "$tmp/v.npy" --out "$tmp/no.safetensors:x" --lse "$tmp/./no.safetensors:x"
expect 0 '' run --q "$tmp/q.npy" --k "$tmp/q.npy" --v "$tmp/v.npy" --out "$tmp/two.safetensors" --lse "$tmp/./two.safetensors"
expect 0 '' run --q "$tmp/q.npy" --k "$tmp/q.npy" --v "$tmp/two.safetensors:out" --out "$tmp/again.npy"

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
