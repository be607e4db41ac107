# SPDX-License-Identifier: Apache-2.0
"""What every attention site is: a name, a preference, a decision for each call, and counters of what ran.

A site decides nothing when it is made. A backend that is installed is a candidate; whether it takes a call is asked of
its row at that call, with the call's own device, dtypes, sizes and options (D2, D4)."""

import collections
import re
import threading
import weakref

import torch

from . import _call, _ops, _policy, _providers, _rapt
from ._errors import CODE, FIELD, ArgumentError, RefusedError, argument_error, refuse
from ._policy import names_text
from ._report import Report, last_report, set_last
from ._torch_request import check_tensor, dtype_name, kind_of

FAMILY = "fp32 b1 h12 q1024 k1024 d128"     # what a report line speaks of where the site names nothing else
_NAME_WIDTH = 19
_FUSED = 2                                  # RAPT_CLASS_FUSED

_lock = threading.Lock()
_made = []                                  # weak references, in the order in which the sites were made


def sites():
    """The sites of this process that are still in use, in the order in which they were made."""
    with _lock:
        _made[:] = [reference for reference in _made if reference() is not None]
        return [site for site in (reference() for reference in _made) if site is not None]


def spelling(**other):
    """A host's own names of the core's fields, for messages (E3)."""
    names = [None] * len(_rapt.FIELDS)
    for field, name in {"q": "q", "k": "k", "v": "v", "dropout": "dropout_p", **other}.items():
        names[FIELD[field]] = name
    return tuple(names)


def _binding():
    from . import torch as binding
    return binding


class Call:
    """One call of a site as rapt.torch.sdpa takes it. finish: what makes the site's result of that function's."""

    __slots__ = ("q", "k", "v", "keywords", "notes", "first", "lengths", "finish")

    def __init__(self, q, k, v, keywords, finish, notes=(), first=None, lengths=None):
        self.q, self.k, self.v, self.keywords, self.finish = q, k, v, keywords, finish
        self.notes, self.first, self.lengths = tuple(notes), first, lengths


def _name(value):
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise refuse("name", repr(value), "a text that names the place in the model is needed")
    return value


def _text(value, field):
    text = names_text(value, field)
    return None if text is None else "".join(text.split())


def _family(value):
    if value is None:
        return FAMILY
    if not isinstance(value, str):
        raise refuse("family", repr(value), f'a problem string such as "{FAMILY}" is needed', "SYNTAX")
    return value


class AttentionSite:
    """One place of a model that computes attention. rapt.torch.attention_site makes it."""

    NAMES = spelling()                  # of the arguments, as this kind of site spells them
    BIASED = spelling(bias="mask")      # the same where the mask is a floating one, which is added

    def __init__(self, name, prefer, otherwise, require, forbid, family):
        self._made_of = (name, prefer, otherwise, require, forbid, family)
        self.name, self.family = _name(name), _family(family)
        self.prefer, otherwise = _text(prefer, "prefer"), _text(otherwise, "otherwise")
        self.require, self.forbid = _text(require, "require"), _text(forbid, "forbid")
        if otherwise is not None:
            if self.require is not None or self.prefer is None:
                raise refuse("otherwise", repr(otherwise), "it goes with prefer and without require")
            self.require = f"{self.prefer},{otherwise}"
        self.own_rows = True            # whether rows of our own may run, as far as the site's names go
        if self.require or self.prefer or self.forbid:
            _policy._check((self.require, self.prefer, self.forbid))
            self._look_at_names()
        self._entered, self._counting, self._place = collections.Counter(), threading.Lock(), f"site {self.name}"
        with _lock:
            _made.append(weakref.ref(self))

    def _look_at_names(self):
        """A preference alone is no consent to approximate results (N7): such a site would never get what it names."""
        shape = (0, _call.DTYPE["bf16"], (1, 1, 1), (1, 1, 1), 0, 0)
        names = {"require": self.require, "prefer": self.prefer, "forbid": self.forbid}
        call = _rapt.prepare(dict.fromkeys("qkv", shape), {field: text for field, text in names.items() if text})
        for context in _policy.contexts:
            report = Report(_rapt.explain(context.handle, call)[1])
            if report.error is None:                # else a name of another binding's rows
                break
        failed = {row.row: {reason.code for reason in row.reasons if reason.state == "failed"} for row in report.rows}
        self.own_rows = any(not codes & {"NOT_REQUIRED", "FORBIDDEN"} for row, codes in failed.items()
                            if row == "ref" or row.startswith("cpu."))
        for row, codes in failed.items():
            if "APPROX" in codes and "OPT_IN" not in codes and self.prefer and not self.require:
                raise refuse("prefer", f"{self.prefer!r}, and {row} is approximate", "the consent is in naming what runs "
                             'otherwise, such as otherwise="torch.sdpa"', "APPROX")

    def __repr__(self):
        return f"<rapt attention site {self.name!r}>"

    def __deepcopy__(self, memo):
        return self                     # as a function does: a copied model calls the same site

    def __reduce__(self):
        return type(self), self._made_of            # what ran is not taken along

    # ---- Preferences: a call's own, then the scopes', then the site's, then the context's (D9) ----

    def _preferences(self, first=None, own=()):
        """The keywords that say so. first: a name to put before what is preferred; own: keywords of the call itself."""
        require, prefer, *_ = _policy.held() or (None, None)
        keywords = {}
        if self.require and not require and "require" not in own:
            keywords["require"] = self.require
        if first or (self.prefer and not prefer and "prefer" not in own):
            keywords["prefer"] = ",".join(filter(None, (first, prefer or self.prefer)))
        if self.forbid:
            keywords["forbid"] = self.forbid
        return keywords

    def _keywords(self, call):
        """All keywords of a call; what it forbids itself adds to what the site forbids."""
        given = {name: value for name, value in call.keywords.items() if value is not None}
        keywords = {**self._preferences(call.first, given), **given}
        bans = [_text(ban, "forbid") for ban in (given.get("forbid"), self.forbid)]
        if any(bans):
            keywords["forbid"] = ",".join(filter(None, bans))
        return keywords

    # ---- Running ----

    def _attend(self, q, *args, **keywords):
        """The call: here, in the graph that is being traced, or where that graph breaks."""
        if not torch.compiler.is_compiling():
            return self._run(self._described(q, *args, **keywords))
        if isinstance(q, torch.Tensor) and q.device.type != "cpu":
            return _outside(self._attend, q, *args, **keywords)           # the operators are for tensors on the CPU
        call = self._described(q, *args, **keywords)
        if not self._fits_graph(call):
            return _outside(self._attend, q, *args, **keywords)
        return self._traced(call)

    def _fits_graph(self, call):
        return True

    def _run(self, call):
        if call.lengths is not None:
            return call.finish(self._with_lengths(call))
        return call.finish(self._once(call))

    def _once(self, call, q=None, k=None, v=None, **lengths):
        """One call of rapt.torch.sdpa, counted by the row that ran it."""
        q, k, v = (call.q, call.k, call.v) if q is None else (q, k, v)
        try:
            result = _binding().sdpa(q, k, v, **self._keywords(call), **lengths)
        except (ArgumentError, RefusedError) as error:
            raise self._said_here(error, call) from None
        report = last_report()
        if report is not None and report.row:
            with self._counting:
                self._entered[report.row] += 1
            set_last(self._noted(report, call, call.notes))
        return result

    def _names(self, call):
        mask = call.keywords.get("attn_mask")
        return self.BIASED if isinstance(mask, torch.Tensor) and mask.is_floating_point() else self.NAMES

    def _noted(self, report, call, notes):
        place = () if report.notes[:1] == (self._place,) else (self._place,)
        return Report(report._handle, self._names(call), (*place, *report.notes, *notes))

    def _with_lengths(self, call):
        """Rows of our own take lengths. Other rows, and calls with a gradient or dropout, get each sample by itself: a
        view of its own rows and keys, which every row can run and which no padding can enter."""
        q, k, v = call.q, call.k, call.v
        q_len, kv_len = call.lengths
        graph = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v))
        own = self.own_rows and kind_of(q.device.type) == _call.KINDS["cpu"]
        if own and not graph and not call.keywords.get("dropout_p"):
            try:
                return self._once(call, q_len=q_len, kv_len=kv_len)
            except RefusedError:
                pass
        return self._by_sample(call, self._listed(q_len, q, "q_len"), self._listed(kv_len, k, "kv_len"))

    def _listed(self, lengths, of, field):
        size = of.shape[2]
        if lengths is None:
            return [size] * of.shape[0]
        values = lengths.tolist()
        for index, length in enumerate(values):
            if not 0 <= length <= size:
                raise argument_error((CODE["LENGTHS"], FIELD[field], -1, index, str(length), f"0..{size}"), self.NAMES)
        return values

    def _by_sample(self, call, q_len, kv_len):
        parts, rows = [], collections.Counter()
        for b, (n, m) in enumerate(zip(q_len, kv_len)):
            part = self._once(call, call.q[b:b + 1, :, :n], call.k[b:b + 1, :, :m], call.v[b:b + 1, :, :m])
            parts.append(torch.nn.functional.pad(part, (0, 0, 0, call.q.shape[2] - n)))
            rows[last_report().row] += 1
        if not parts:
            return self._once(call)
        ran = ", ".join(f"{row} {count}x" for row, count in rows.items())
        note = f"one call for each of {len(parts)} samples, with its own lengths: ran {ran}; this report is of the last"
        set_last(self._noted(last_report(), call, (note,)))
        return torch.cat(parts)

    def _said_here(self, error, call):
        """The same exception with the arguments as this site spells them."""
        if isinstance(error, RefusedError):
            report = self._noted(error.report, call, call.notes)
            set_last(report)
            return RefusedError(report)
        if error.report is not None and error.report.error is not None:
            text = str(error)
            host = text.find(" Expected query, key")
            return argument_error(error.report.error, self._names(call), error.report, text[host:] if host >= 0 else "")
        words = {"query": "q", "key": "k", "value": "v", "attn_mask": "mask"}
        words.update((field, name) for field, name in zip(_rapt.FIELDS, self.NAMES) if name and field not in "qkv")
        said = re.compile(r"\b(" + "|".join(words) + r")\b(?!\w|\()")

        def respelled(text):
            return said.sub(lambda match: words[match.group()], text) if text else text
        return ArgumentError(respelled(str(error)), error.code, respelled(error.field), error.got, error.want,
                             error.report)

    # ---- Asking ----

    def _explain(self, call, device, facts):
        if call.lengths is None:
            return self._asked(call, device, facts, call.q, call.k, call.v)
        q_len, kv_len = call.lengths
        report = self._asked(call, device, facts, call.q, call.k, call.v, q_len=q_len, kv_len=kv_len)
        if report.status == "OK":
            return report
        n, m = self._listed(q_len, call.q, "q_len")[:1], self._listed(kv_len, call.k, "kv_len")[:1]
        first = (call.q[:1, :, :n[0]], call.k[:1, :, :m[0]], call.v[:1, :, :m[0]]) if n else (call.q, call.k, call.v)
        return self._asked(call, device, facts, *first)

    def _asked(self, call, device, facts, q, k, v, **lengths):
        try:
            report = _binding().explain(q, k, v, device=device, facts=facts, **self._keywords(call), **lengths)
        except ArgumentError as error:
            raise self._said_here(error, call) from None
        return self._noted(report, call, call.notes)

    def explain(self, *args, device=None, facts=None, **keywords):
        """The report of the same call, which does not run. device and facts as rapt.torch.explain takes them. Of a call
        that is made sample by sample it is the first sample's."""
        return self._explain(self._described(*args, **keywords), device, facts)

    def entered(self):
        """How often each row has run for this site: {row id: count}. Compiled graphs count in their context only."""
        with self._counting:
            return dict(self._entered)

    def _dtypes(self, dtypes):
        return dtypes

    def _line(self, family, dtypes, devices, facts, load):
        for name, value in (("dtypes", dtypes), ("devices", devices)):
            if value is not None and not isinstance(value, str):
                raise refuse(name, repr(value), "names joined by commas are needed, as one text", "SYNTAX")
        where, kind = _binding()._place(None, facts)
        if devices is None:
            if facts is None and torch.cuda.is_available():
                kind = kind_of("cuda")
            devices = f"cpu,{_kind_name(kind)}" if kind else "cpu"
        if _call.flag(load, "load") and facts is None:
            for name in devices.split(","):
                if name in _call.KINDS and name != "cpu":
                    _providers.load(where, _call.KINDS[name])
        options = {}
        keywords = self._preferences()
        _policy.resolve(options, keywords.get("require"), keywords.get("prefer"), keywords.get("forbid"), None)
        tokens = [_family(family if family is not None else self.family)]
        if devices != "cpu" or facts is not None:
            tokens.append("assume_finite")          # as the binding says of tensors on a device (H3)
        tokens += [f"{name}={_text(options[name], name)}" for name in ("require", "prefer", "forbid")
                   if name in options]
        if "memory_limit" in options:
            tokens.append(f"mem={options['memory_limit']}")
        try:
            return where, _rapt.ctx_line(where.handle, " ".join(tokens), self._dtypes(dtypes), devices)[0]
        except _rapt.Fault as fault:
            raise argument_error(fault.args[1:], None) from None

    def report_line(self, family=None, dtypes=None, devices=None, facts=None, load=False):
        """The line that says what runs at this site (R4), such as
        "Video DiT          : flash_attention_2 (CUDA fp16/bf16 only; torch_sdpa otherwise)".

        It speaks of one problem family, the site's own where none is given: a problem string whose dtypes and device give
        way to those of two lists. dtypes: "fp16,bf16,fp32"; devices: the CPU, and CUDA where PyTorch has one. facts: a
        facts string asks for a machine that is not here. Runs nothing and imports nothing, so that before the first call
        on a device its packages are not known and the line may say "undecided". load=True imports them and makes sure
        that they launch, as that call would."""
        return f"{self.name:<{_NAME_WIDTH}}: {self._line(family, dtypes, devices, facts, load)[1]}"

    def fused_backend_name(self, family=None, dtypes=None, devices=None, facts=None, load=False):
        """The display name at the head of the report line where that is a fused kernel, else None. It is not what every
        call gets: report_line says on which devices and dtypes."""
        where, line = self._line(family, dtypes, devices, facts, load)
        head = line.partition(" (")[0]
        fused = any(row[1] == head and row[5] & _FUSED for row in _rapt.ctx_rows(where.handle))
        return head if fused else None

    # ---- Under torch.compile ----

    def _traced(self, call):
        """The same preferences as arguments of one operator, which decides when the graph runs."""
        keywords = {name: value for name, value in call.keywords.items() if value is not None}
        names = [name for name in (call.first, _text(keywords.pop("prefer", None), "prefer") or self.prefer) if name]
        bans = [ban for ban in (_text(keywords.pop("forbid", None), "forbid"), self.forbid) if ban]
        said = call.first or call.keywords.get("prefer") or call.keywords.get("require")    # goes before a scope (D9)
        require = keywords.pop("require", None) or self.require
        return call.finish(_ops.compiled_sdpa(call.q, call.k, call.v, require=require, prefer=",".join(names) or None,
                                              forbid=",".join(bans) or None, _origin="" if said else self._place, **keywords))


@torch._disable_dynamo
def _outside(function, *args, **keywords):
    return function(*args, **keywords)


def _kind_name(kind):
    return next(name for name, number in _call.KINDS.items() if number == kind)


def check_floating(**tensors):
    """Operands that are tensors of a floating dtype."""
    for name, tensor in tensors.items():
        check_tensor(tensor, name, False)
        if not tensor.is_floating_point():
            raise refuse(name, dtype_name(tensor.dtype), "fp16, bf16, fp32 or fp64 is needed", "DTYPE")


def check_sizes(q, k, v, head, row):
    """What the core would say of axes that the caller has in another order. head, row: which axis is which."""
    for name, t, axis, of, size in (("k", k, -1, "q", q.shape[-1]), ("v", v, row, "k", k.shape[row]),
                                    ("v", v, head, "k", k.shape[head])):
        if t.shape[axis] != size:
            raise refuse(name, f"of shape {tuple(t.shape)}", f"axis {axis % t.dim()} must be {size} as in {of}", "SHAPE")
    if k.shape[head] == 0 or q.shape[head] % k.shape[head]:
        raise refuse("k", f"of {k.shape[head]} heads", f"a divisor of the {q.shape[head]} heads of q is needed", "HEADS")


def check_rank(rank, form, **tensors):
    for name, tensor in tensors.items():
        if tensor.dim() != rank:
            raise refuse(name, f"of {tensor.dim()} axes", f"{rank} are needed, {form}", "RANK")
