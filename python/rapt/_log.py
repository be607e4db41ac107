# SPDX-License-Identifier: Apache-2.0
"""Decisions, refusals and notices of the core as records of the logger "rapt" (E4, R8), and RAPT_LOG.

One record a new decision, not one a call: a call like one before makes none. Nothing is printed unless the program has
set logging up, or the user RAPT_LOG."""

import atexit
import os
import sys
import threading

from . import _rapt

KINDS = ("decision", "refusal", "notice", "fault")      # RAPT_LOG_*
_LEVELS = (10, 20, 30, 20)              # DEBUG, INFO: a refusal or fault is an exception as well; WARNING
_sinks = [None]                         # by number: what RAPT_LOG said when a context was made
_NAME = "rapt"


def _write_stderr(text):
    if sys.stderr is not None:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def _writer(target):
    if target == "stderr":
        return _write_stderr
    fd = os.open(target, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOCTTY, 0o666)
    return lambda text: os.write(fd, (text + "\n").encode())    # one write a line: those of several processes do not mix


def _open_sink(spec):
    """The number of the place that RAPT_LOG names; the core has found the value legal."""
    folder, slash, name = spec.rpartition("/")
    target, _, kinds = name.partition(":")
    wanted = {"": (0, 1, 3), "decisions": (0,), "refusals": (1, 3)}[kinds]
    for number, sink in enumerate(_sinks):
        if sink is not None and sink[0] == spec:
            return number
    _sinks.append((spec, wanted, _writer(folder + slash + target)))
    return len(_sinks) - 1


def _logger():
    """None where nobody has imported logging, so nobody listens."""
    logging = sys.modules.get("logging")
    if logging is None:
        return None
    logger = logging.getLogger(_NAME)
    if not logger.handlers:             # without one, logging itself would print what nobody has asked for
        logger.addHandler(logging.NullHandler())
    return logger


def _thread_name(ident):
    return next((thread.name for thread in threading.enumerate() if thread.ident == ident), None)


def _emit(kind, text, thread):
    logger = _logger()
    if logger is None or not logger.isEnabledFor(_LEVELS[kind]):
        return
    record = logger.makeRecord(_NAME, _LEVELS[kind], "(rapt)", 0, "%s", (text.removeprefix("rapt: "),), None,
                               extra={"rapt_kind": KINDS[kind]})
    if thread != record.thread:         # told by another thread than the one that made the call
        record.thread, record.threadName = thread, _thread_name(thread)
    logger.handle(record)


def notice(text):
    """A line of the binding itself."""
    _emit(KINDS.index("notice"), text, threading.get_ident())


def _receive(kind, text, thread, sink, lost):
    if lost:
        _emit(2, f"rapt: {lost} lines before this one were lost, too many waited to be told", thread)
    try:
        place = _sinks[sink]
        if place is not None and kind in place[1]:
            place[2](text)
    finally:
        _emit(kind, text, thread)


_rapt.log_to(_receive, _open_sink)
atexit.register(_rapt.log_to, None, None)
