# SPDX-License-Identifier: Apache-2.0
"""rapt.policy: scopes per task and thread, below the call's own argument (D8, D9, D21)."""

import asyncio
import contextvars
import threading

import numpy as np
import pytest

import rapt

Q = np.ones((1, 1, 2, 4), np.float32)


def row(**keywords):
    rapt.attention(Q, Q, Q, **keywords)
    return rapt.last_report().row


def test_a_scope_holds_inside_and_is_restored_d21():
    outside = row()
    assert outside != "ref"
    with rapt.policy(require="ref"):
        assert row() == "ref"
        with rapt.policy(require="cpu"):
            assert row() == outside
        assert row() == "ref"
        with pytest.raises(KeyError), rapt.policy(require="cpu"):
            raise KeyError
        assert row() == "ref"
    assert row() == outside


def test_one_object_in_several_places_d21():
    scope = rapt.policy(require="ref")
    with scope, scope:
        assert row() == "ref"
    assert row() != "ref"


def test_the_call_goes_before_the_scope_d9():
    with rapt.policy(require="cpu"):
        assert row(require="ref") == "ref"
    with rapt.policy(require="ref"):
        assert row(require="cpu").startswith("cpu.")
        assert row(prefer="cpu") == "ref"


def test_bans_add_up_and_no_require_lifts_them_d9():
    with rapt.policy(forbid="cpu"):
        assert row() == "ref"
        with rapt.policy(forbid=["ref"]), pytest.raises(rapt.RefusedError) as caught:
            row()
        with pytest.raises(rapt.RefusedError) as again:
            row(require="cpu")
        with pytest.raises(rapt.RefusedError) as both:
            row(forbid="ref")
    report = caught.value.report
    assert "FORBIDDEN" in report.codes("ref") and "FORBIDDEN" in report.codes("cpu.scalar")
    assert "FORBIDDEN" in again.value.report.codes("cpu.scalar")
    assert "FORBIDDEN" in both.value.report.codes("ref") and "FORBIDDEN" in both.value.report.codes("cpu.scalar")


def test_the_report_names_the_scope_d9():
    with rapt.policy(require="ref"):
        row()
    assert "scope" in rapt.last_report().json_text
    row(require="ref")
    assert "scope" not in rapt.last_report().json_text


def test_memory_limit_d16():
    with rapt.policy(memory_limit=0):
        assert rapt.explain(Q, Q, Q).json["policy"]["memory_limit"] == 0
        assert rapt.explain(Q, Q, Q, memory_limit=99).json["policy"]["memory_limit"] == 99
    assert rapt.explain(Q, Q, Q).json["policy"]["memory_limit"] is None


def test_unknown_names_d8():
    with pytest.raises(rapt.ArgumentError) as caught:
        row(prefer="nobody")
    assert caught.value.code == "UNKNOWN_NAME" and "nobody" in str(caught.value)
    with pytest.raises(rapt.ArgumentError, match="^UNKNOWN_NAME: require is 3"):
        rapt.policy(require=3)


@pytest.mark.parametrize("field", ["require", "prefer", "forbid"])
def test_a_scope_checks_its_names_when_it_is_entered_d8(field):
    outside = row()
    reached = False
    with pytest.raises(rapt.ArgumentError, match=f"^UNKNOWN_NAME: {field} names nobody"):
        with rapt.policy(**{field: ["ref", "nobody"]}):
            reached = True
    assert not reached and row() == outside                     # the scope was never in force
    with rapt.policy(**{field: ["torch.sdpa", "class:fused", "fa2"]}):              # known, whether here or not
        reached = True
    assert reached


def test_unknown_keywords_of_a_scope_are_named_e6():
    with pytest.raises(rapt.ArgumentError, match="requires is not accepted; did you mean require[?]") as caught:
        rapt.policy(requires="ref")
    assert caught.value.code == "UNKNOWN_FIELD" and caught.value.field == "requires"
    for limit in (1e9, "4G", True, -1):
        with pytest.raises(rapt.ArgumentError, match="memory_limit is .*a whole number of bytes"):
            rapt.policy(memory_limit=limit)


@pytest.mark.parametrize("empty", ["", [], ()])
def test_an_empty_list_is_not_set_d9(empty):
    outside = row()
    with rapt.policy(require="ref"):
        with rapt.policy(require=empty, prefer=empty, forbid=empty):
            assert row() == "ref"                               # the scope around it holds
        assert row(require=empty) == "ref"
    assert row(require=empty, prefer=empty, forbid=empty) == outside


def test_other_threads_do_not_see_it_d21():
    seen = []
    with rapt.policy(require="ref"):
        thread = threading.Thread(target=lambda: seen.append(row()))
        thread.start()
        thread.join()
        assert row() == "ref"
    assert seen and seen[0] != "ref"


def test_tasks_keep_their_own_d21():
    async def task(name, gate):
        with rapt.policy(require=name):
            await gate.wait()
            return row(), rapt.last_report().row

    async def main():
        gate = asyncio.Event()
        tasks = [asyncio.create_task(task(name, gate)) for name in ("ref", "cpu")]
        await asyncio.sleep(0)
        outside = row()
        gate.set()
        one, two = await asyncio.gather(*tasks)
        return outside, one, two, rapt.last_report().row

    outside, one, two, last = asyncio.run(main())
    assert one == ("ref", "ref") and two[0].startswith("cpu.") and two[0] == two[1]
    assert outside == last != "ref"


def held_open(**keywords):
    with rapt.policy(**keywords):
        yield


def test_scopes_that_end_in_another_order_take_only_themselves_d21():
    outside, outer = row(), held_open(require="ref")
    next(outer)
    with rapt.policy(require="cpu", forbid="ref"):
        outer.close()
        with pytest.raises(rapt.RefusedError):
            row(require="ref")                                  # this scope's ban is still there
        assert row() == outside
    assert row() == outside and row(require="ref") == "ref"


def test_a_scope_that_ends_in_another_task_leaves_that_ones_alone_d21():
    outside, mine = row(), contextvars.copy_context()
    opened = held_open(require="ref")
    mine.run(next, opened)
    with rapt.policy(require="cpu"):
        opened.close()
        assert row() == outside and rapt.last_report().json["policy"]["require"] == ["cpu"]
    opened = held_open(require="ref")
    mine.run(next, opened)
    opened.close()                                              # no scope holds here
    assert row() == outside


def test_the_last_report_is_per_thread():
    row(require="ref")
    seen = []
    thread = threading.Thread(target=lambda: seen.append((rapt.last_report(), row())))
    thread.start()
    thread.join()
    assert seen[0][0] is None and seen[0][1] != "ref"
    assert rapt.last_report().row == "ref"
