#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# info, explain, line, help and the messages of wrong arguments (api.md section 10; contract D20, E3, R4, R5, R6).
. "$(dirname "$0")/lib.sh"
small='fp32 b1 h8 q256 k256 d64'

expect 0 '^usage: rapt' help
expect 0 '^usage: rapt' --help
for name in REQUIRE PREFER FORBID MEMORY_LIMIT REF_LIMIT ISA VERIFY LOG; do
  in_out "^  RAPT_$name "
  checks=$((checks + 1))
  grep -q "RAPT_$name" "$source_dir/docs/cli.md" || wrong "docs/cli.md has no RAPT_$name"
done
for verb in info explain line run cases bench; do
  expect 0 "^usage: rapt $verb" $verb --help
  in_out '^  RAPT_REQUIRE '
  expect 0 "^usage: rapt $verb" help $verb
  expect 0 "^usage: rapt $verb" $verb x --json --help
done
expect 0 '^rapt [0-9]+\.[0-9]+\.[0-9]+$' --version
expect 2 "verb: want info, explain" ''
expect 2 "verb 'frob': want info, explain" frob
expect 2 "verb 'verify': not in this version" verify "$small"
expect 2 "verb 'matrix': not in this version" matrix

# info: D23
expect 0 '^facts: cpu isa=' info
in_out '^isa: [a-z0-9]+$'
in_out '^  ref +ref +own +reference +entered 0$'
in_out '^  fa2 +flash_attention_2 +opt-in'
expect 2 "argument 'x'" info x
RAPT_ISA=scalar expect 0 '^RAPT_ISA=scalar$' info
RAPT_ISA=nonsense expect 2 "RAPT_ISA: UNKNOWN_NAME" info
out_empty
RAPT_FORBIT=fa2 expect 0 'rapt info: RAPT_FORBIT is set, but no variable that is read' info
not_in_out FORBIT
RAPT_FORBID=fa2 expect 0 '^RAPT_FORBID=fa2$' info
checks=$((checks + 1))
[ ! -s "$tmp/err" ] || wrong "notices without a cause: $(head -c 300 "$tmp/err")"
expect 0 '^\{"schema":"rapt.info/1","version":' info --json
one_line

# explain: 0 chosen, 1 refused or a fault of the call, 2 not a problem string, 3 undecided
expect 0 'would choose ' explain "$small"
expect 0 'would choose ' explain fp32 b1 h8 q256 k256 d64
expect 0 '^\{"schema":"rapt.decision/1".*"status":"OK"' explain "$small" --json
one_line
expect 1 '^REFUSED' explain "$small require=fa2"
in_out 'AVAIL'
expect 1 '"status":"REFUSED"' explain "$small require=fa2" --json
one_line
expect 1 'ALIGNMENT_UNSET' explain 'fp32 b1 h8 q64 k65 d64 causal'
expect 1 'UNKNOWN_NAME' explain "$small require=nope"
expect 2 'PROBLEM .fp32 b1 h8. *: SYNTAX' explain 'fp32 b1 h8'
expect 2 'UNKNOWN_FIELD.*colour' explain "$small colour=red"
expect 2 '"schema":"rapt.error/1".*"argument":"PROBLEM"' explain "$small colour=red" --json
expect 2 'PROBLEM: is missing' explain
expect 2 "option '--fact' *: is not known here, want one of: --facts" explain "$small" --fact x
expect 2 "option '--facts': needs a value" explain "$small" --facts
expect 2 "'--device'|--device .*given twice" explain "$small" --device cuda --device hip
expect 2 '--record .*not in this version' explain "$small" --record x

# the worked example: one facts string in four ways
facts='cuda cc=9.0 torch=2.13.0 cuda=12.8 cudnn=9.12.0 flash-attn=2.8.3 flash-attn.cc=8.0,9.0'
call='fp32/fp32/bf16 b1 h24 q512 k512 d128 autocast=bf16 dev=cuda assume_finite prefer=fa2'
family='fp32 b1 h24 q512 k512 d128 assume_finite require=fa2,torch.sdpa prefer=fa2'
line='^flash_attention_2 \(CUDA fp16/bf16 only; torch_sdpa otherwise\)$'
expect 0 '^would choose fa2 ' explain "$call" --facts "$facts"
in_out 'casts +q fp32 -> bf16 .*k fp32 -> bf16'
cp "$tmp/out" "$tmp/whole"
expect 0 '' explain "$call" --device cuda:sm90 --with torch=2.13.0 --with cuda=12.8 --with cudnn=9.12.0 \
  --with flash-attn=2.8.3 --with flash-attn.cc=8.0,9.0
same_bytes "$tmp/out" "$tmp/whole"
printf '%s\n' "$facts" >"$tmp/facts.txt"
expect 0 '' explain "$call" --facts "$tmp/facts.txt"
same_bytes "$tmp/out" "$tmp/whole"
cat >"$tmp/facts.json" <<'J'
{"schema": "rapt.facts/1", "device": {"kind": "cuda", "cc": "9.0"}, "packages": {"torch": {"version": "2.13.0"},
 "cuda": {"version": "12.8"}, "cudnn": {"version": "9.12.0"}, "flash-attn": {"version": "2.8.3", "cc": ["8.0", "9.0"]}}}
J
expect 0 '' explain "$call" --facts "$tmp/facts.json"
same_bytes "$tmp/out" "$tmp/whole"
expect 0 "$line" line "$family" --facts "$facts"
expect 0 '"line":"flash_attention_2 ' line "$family" --facts "$facts" --json
one_line
# with autocast=bf16 fa2 gets bf16 from every dtype, and the dtype part is empty (R4)
expect 0 '^flash_attention_2 \(CUDA only; torch_sdpa otherwise\)$' line "$family autocast=bf16" --facts "$facts"
# the facts' kind sets dev where the string has none
expect 0 'dev=cuda' explain 'bf16 b1 h24 q512 k512 d128 assume_finite prefer=fa2' --facts "$facts"
# undecided for want of facts
expect 3 'undecided' explain 'bf16 b1 h8 q64 k64 d64 require=fa2 assume_finite' --device cuda:sm90
expect 3 '' line 'fp32 b1 h24 q512 k512 d128 assume_finite require=fa2' --device cuda:sm90
# --with alone speaks of this machine; what it names replaces what is here (D20)
expect 0 "what if +cpu isa=[a-z0-9]+ threads=[0-9]+ torch=2.13.0" explain "$small" --with torch=2.13.0
expect 0 "what if +cpu isa=[a-z0-9]+ threads=77 torch=2.13.0" explain "$small" --with threads=77 --with torch=2.13.0
expect 2 "facts .*SYNTAX" explain "$small" --with threads=77 --with threads=78
expect 2 "facts 'cpu .*threads=2 threads=3.*SYNTAX" explain "$small" --facts 'cpu threads=2' --with threads=3
expect 2 "--facts '/none/here': no such file, and no facts: want a device kind first" explain "$small" --facts /none/here
# the lists of line; a fault of the family is the same report as explain's, on the same stream
expect 2 "--devices ',': '' is no device kind" line "$family" --devices ,
expect 2 "--devices 'cpu,gpu': 'gpu' is no device kind, want a list as in cpu,cuda" line "$family" --devices cpu,gpu
expect 2 "--dtypes 'fp32,int8': 'int8' is no floating dtype" line "$family" --dtypes fp32,int8
expect 1 '^ARG for ' explain 'fp32 b1 h8 q64 k65 d64 causal'
cp "$tmp/out" "$tmp/fault"
expect 1 '^ARG for ' line 'fp32 b1 h8 q64 k65 d64 causal'
same_bytes "$tmp/out" "$tmp/fault"
expect 1 '^\{"schema":"rapt.decision/1".*"status":"ARG"' line 'fp32 b1 h8 q64 k65 d64 causal' --json
one_line
# what a device is
expect 2 "--device 'gpu': want cpu, cuda" explain "$small" --device gpu
expect 2 "--device 'cuda:9.0': want cuda:smNN" explain "$small" --device cuda:9.0
expect 0 'what if +cuda cc=12.0' explain "bf16 b1 h8 q64 k64 d64 require=torch.math assume_finite" --device cuda:sm120 --with torch=2.13.0
expect 2 "--with 'torch': want KEY=VALUE" explain "$small" --with torch
expect 2 "facts .*UNKNOWN_FIELD" explain "$small" --with nothing=1
expect 2 "--device 'hip': --facts speaks of cuda" explain "$small" --facts "$facts" --device hip
printf '{"schema": "rapt.facts/1", "schema": "x"}' >"$tmp/twice.json"
expect 2 'duplicate' explain "$small" --facts "$tmp/twice.json"
# nothing but text where stdout is no terminal
expect 0 '' explain "$small"
not_in_out "$(printf '\033')"
finish
