#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# rapt bench: its forms and messages; no figure is judged here.
. "$(dirname "$0")/lib.sh"
p='fp32 b1 h1 q32 k32 d16'
expect 0 'GFLOP/s' bench "$p" --seconds 0 --threads 1
in_out '^fp32 b1 h1 q32 k32 d16$'
expect 0 '^\{"schema":"rapt.bench/1","facts":"cpu .*"results":\[\{"problem":"fp32 b1 h1 q32 k32 d16","row":"[^"]+","kernel":"[^"]+","isa":"[^"]+","threads":1,"median_s":[0-9.e-]+,"spread":' bench "$p" --seconds 0 --threads 1 --json
one_line
expect 0 'A ref: .*' bench "$p" --ab require=ref require=ref --seconds 0 --threads 1
in_out 'threshold [0-9.]+ \(A against A\)'
expect 0 '"schema":"rapt.bench.ab/1".*"verdict":"' bench "$p" --ab require=ref require=cpu.scalar --seconds 0 --threads 1 --json
printf '# two problems\n%s\n\n%s causal\n' "$p" "$p" >"$tmp/list"
expect 0 '^fp32 b1 h1 q32 k32 d16 causal$' bench "$tmp/list" --seconds 0 --threads 1
# one document, whatever the answer
printf '%s require=fa2\n%s\n' "$p" "$p" >"$tmp/one_refused"
expect 1 '^REFUSED: ' bench "$tmp/one_refused" --seconds 0 --threads 1
in_out '^fp32 b1 h1 q32 k32 d16$'
expect 1 '^\{"schema":"rapt.bench/1".*"results":\[\{"problem":"fp32 b1 h1 q32 k32 d16 require=fa2","refused":\{"schema":"rapt.decision/1".*,\{"problem":"fp32 b1 h1 q32 k32 d16","row":' bench "$tmp/one_refused" --seconds 0 --threads 1 --json
one_line
printf '%s\n%s colour=1\n' "$p" "$p" >"$tmp/malformed"
expect 2 '^\{"schema":"rapt.error/1"' bench "$tmp/malformed" --seconds 0 --threads 1 --json
one_line
expect 1 '^\{"schema":"rapt.decision/1"' bench "$p require=fa2" --seconds 0 --json
one_line
expect 1 '^\{"schema":"rapt.decision/1"' bench "$p" --ab require=ref require=fa2 --seconds 0 --json
one_line
expect 1 'REFUSED' bench "$p require=fa2" --seconds 0
expect 1 'ARG for' bench "$p require=nope" --seconds 0
expect 2 'PROBLEM: is missing' bench
expect 2 "--threads '0': want a whole number from 1" bench "$p" --threads 0
expect 2 "--seconds 'x': want a whole number" bench "$p" --seconds x
expect 2 "'--ab': needs two values" bench "$p" --ab require=ref
expect 2 'UNKNOWN_FIELD' bench "$p" --ab colour=1 require=ref
: >"$tmp/empty"
expect 2 'has no problem string' bench "$tmp/empty"

targets() { printf '{"schema": "rapt.targets/1", "targets": [%s]}' "$1" >"$tmp/t.json"; }
rate="\"figure\": \"rate_ratio\", \"problem\": \"$p\", \"beside\": \"$p\""
targets "{\"name\": \"same\", $rate, \"bar\": 0.01}"
expect 0 '^same .*met' bench --targets "$tmp/t.json" --seconds 0
in_out '^1 met, 0 missed, 0 not measured$'
targets "{\"name\": \"never\", $rate, \"bar\": 1000}"
expect 1 '^never .*missed' bench --targets "$tmp/t.json" --seconds 0
expect 1 '"verdict":"missed"' bench --targets "$tmp/t.json" --seconds 0 --json
one_line
targets "{\"name\": \"refused\", \"figure\": \"peak_share\", \"problem\": \"$p require=fa2\", \"bar\": 0.5}"
expect 1 '^refused .*missed' bench --targets "$tmp/t.json" --seconds 0
expect 1 '^\{"schema":"rapt.bench.targets/1","results":\[\{"problem":"[^"]*","refused":.*"verdict":"missed"' bench --targets "$tmp/t.json" --seconds 0 --json
one_line
# a gain is judged or not measured, never taken from rounds that others disturbed; one core has none
targets "{\"name\": \"pair\", \"figure\": \"thread_gain\", \"problem\": \"$p\", \"threads\": 2, \"bar\": 0.000001}"
checks=$((checks + 1))
"$rapt" bench --targets "$tmp/t.json" --seconds 0 >"$tmp/out" 2>&1
grep -Eq '^pair .*(met  .*2 threads, gain [0-9.]+, the probe.s [0-9.]+|not measured  .*(others had|usable cores|no probe))' "$tmp/out" ||
  wrong "thread_gain: $(head -c 300 "$tmp/out")"
# with every core taken there is no such round
rivals=
for i in $(seq $(($(nproc) + 2))); do
  sh -c 'while :; do :; done' &
  rivals="$rivals $!"
done
"$rapt" bench --targets "$tmp/t.json" --seconds 0 >"$tmp/out" 2>&1
kill $rivals
checks=$((checks + 1))
grep -Eq '^pair .*not measured  .*(others had|usable cores)' "$tmp/out" || wrong "thread_gain beside rivals: $(head -c 300 "$tmp/out")"
targets "{\"name\": \"wide\", \"figure\": \"thread_gain\", \"problem\": \"$p\", \"threads\": 100000, \"bar\": 0.5}"
expect 3 '^wide .*not measured' bench --targets "$tmp/t.json" --seconds 0
targets "{\"name\": \"x\", \"figure\": \"beauty\", \"problem\": \"$p\", \"bar\": 1}"
expect 2 "figure 'beauty': want peak_share" bench --targets "$tmp/t.json"
targets ''
expect 2 'targets: want a list' bench --targets "$tmp/t.json"
expect 2 'cannot be read' bench --targets "$tmp/none.json"
finish
