#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# rapt cases: all case files pass, a wrong value and a malformed file are seen (cases/README.md).
. "$(dirname "$0")/lib.sh"
dir="$source_dir/tests/cases"

expect 0 ' 0 failed' cases "$dir/cases.json" "$dir/random-tiny.json" "$dir/random-tile.json"
# the counts of rows that are on every machine may only rise
awk '$1 == "automatic" || $1 == "cpu.scalar" || $1 == "ref" { print "floor: cases_" $1 " " $2 }' "$tmp/out"
in_out '^automatic +[1-9]'
in_out '^ref +[1-9]'

# mutant RECORD SED: the cases of one record pass, and fail with one expected thing changed
mutant() {
  {
    echo '{"format": 1, "cases": ['
    grep -E "\"record\": \"$1\"" "$dir/cases.json" | sed 's/,$//' | sed '$!s/$/,/'
    echo ']}'
  } >"$tmp/good.json"
  sed "$2" "$tmp/good.json" >"$tmp/mutant.json"
  if cmp -s "$tmp/good.json" "$tmp/mutant.json"; then wrong "mutant of $1 changes nothing: $2"; fi
  expect 0 ' 0 failed' cases "$tmp/good.json" --backend ref
  expect 1 "FAILED" cases "$tmp/mutant.json" --backend ref
}
mutant R01 's/"is": \[0.09014, 0.485622, -0.321342\]/"is": [0.19014, 0.485622, -0.321342]/'
mutant R01 's/"code": "DTYPE_MIX"/"code": "DTYPE"/'
mutant R01 's/"argument": "q,k,v"/"argument": "q"/'
mutant R03 's/"ignores": {"k": "s == 5"/"ignores": {"k": "s == 4"/'
mutant 'R04|R05' 's/"message_has": \["uint8"\]/"message_has": ["uint9"]/'
mutant R06 's/"minus": "R06.none", "is": \[0, 2, -3\]/"minus": "R06.none", "is": [0, 2, -2]/'
mutant R09 's/"at": \[0, 0, 5\], "is": "zero"/"at": [0, 0, 4], "is": "zero"/'
mutant R09 's/"of": "lse", "at": \[0, 0, 5\], "is": "-inf"/"of": "lse", "at": [0, 0, 5], "is": "zero"/'
mutant R12 's/"equals": \["v", 0, 0, 64\]/"equals": ["v", 0, 0, 63]/'
mutant R13 's/"is": \[1.0\], "exact"/"is": [1.0000002], "exact"/'
mutant R15 's/"align": "top-left"/"align": "bottom-right"/'
mutant R16 's/"by": 0.93/"by": 0.73/'
mutant R27 's/"shape": \[1, 1, 2, 6\]/"shape": [1, 1, 2, 7]/'
mutant R33 's/"expr": "(i % 4) + 1", "exact"/"expr": "(i % 4) + 2", "exact"/'
mutant R35 's/"is": \[50000.0\], "rtol": 0.0004/"is": [50100.0], "rtol": 0.0004/'
sed 's/"values": \[-0.251877176678713/"values": [-0.251977176678713/' "$dir/random-tiny.json" >"$tmp/values.json"
expect 1 'tiny1.f000.plain, ref: out, value 0' cases "$tmp/values.json" --backend ref
expect 1 '"failures":\[\{"case":"tiny1.f000.plain"' cases "$tmp/values.json" --backend ref --json
one_line

# usage and hostile files
expect 2 "FILE: is missing" cases
expect 2 "cannot be read" cases "$tmp/none.json"
expect 2 "--backend 'fa2': want one of: cpu.scalar" cases "$dir/cases.json" --backend fa2
hostile() {
  printf '%s' "$2" >"$tmp/h.json"
  expect 2 "FILE .*h.json.*$1" cases "$tmp/h.json"
  out_empty
}
call='"kind": "forward", "dtype": "fp32", "shapes": {"B": 1, "Hq": 1, "Hkv": 1, "Sq": 1, "Skv": 1, "D": 1, "Dv": 1}'
fill='"fill": {"q": {"U": 1}, "k": {"U": 2}, "v": {"U": 3}}'
one() { printf '{"format": 1, "cases": [{"id": "x", %s}]}' "$1"; }
hostile "line 1" '{"format": 1'
hostile "duplicate" '{"format": 1, "format": 1, "cases": []}'
hostile "field 'format': want 1" '{"format": 2, "cases": []}'
hostile "field 'cases'" '{"format": 1, "cases": {}}'
hostile "want id and kind" '{"format": 1, "cases": [{}]}'
hostile "kind 'odd'" "$(one '"kind": "odd"')"
hostile "field 'colour': is not known" "$(one "$call, $fill, \"want\": [], \"colour\": 1")"
hostile "field 'want': is missing" "$(one "$call, $fill")"
hostile "recipe: want one of" "$(one "$call, \"fill\": {\"q\": {}}, \"want\": []")"
hostile "expression 's / 2'" "$(one "$call, \"fill\": {\"q\": {\"expr\": \"s / 2\"}}, \"want\": []")"
hostile "nested too deeply" "$(one "$call, \"fill\": {\"q\": {\"expr\": \"$(printf '%0400d' 0 | tr 0 '(')1\"}}, \"want\": []")"
hostile "is no dtype" "$(one "$(printf '%s' "$call" | sed s/fp32/fp31/), $fill, \"want\": []")"
hostile "elements a tensor" "$(one "$(printf '%s' "$call" | sed 's/"Sq": 1/"Sq": 4611686018427387904/'), $fill, \"want\": []")"
hostile "elements a tensor" "$(one "$(printf '%s' "$call" | sed 's/"Sq": 1/"Sq": -1/'), $fill, \"want\": []")"
hostile "at: index 9" "$(one "$call, $fill, \"want\": [{\"of\": \"out\", \"at\": [0, 0, 9], \"is\": [1]}]")"
hostile "case 'y' is named, but not there" "$(one "$call, $fill, \"want\": [{\"same_bits_as\": \"y\"}]")"
hostile "a check is not known" "$(one "$call, $fill, \"want\": [{\"of\": \"out\"}]")"
hostile "no case was run" "$(one '"kind": "scenario", "steps": ["a"], "expect": ["b"]')"
finish
