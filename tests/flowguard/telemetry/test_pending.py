"""Rows that wait for the disk: in order, within both bounds, and dropped ones are counted."""

from hypothesis import given
from hypothesis import strategies as st

from flowguard.telemetry.pending import ROW_BYTES, PendingRows
from flowguard.telemetry.progress import Drops
from flowguard.telemetry.schema import ATTEMPTS, GOODPUT, SAMPLES, TABLES

NO_BOUND = 10**9


def test_rows_come_out_by_run_and_table_in_order() -> None:
    pending = PendingRows(NO_BOUND, NO_BOUND, {})
    pending.begin("a", ("run a",))
    pending.add(SAMPLES, (1,))
    pending.add(GOODPUT, (2,))
    pending.add(SAMPLES, (3,))
    (first,) = pending.take()
    assert (first.run_id, first.run, first.end) == ("a", ("run a",), None)
    assert first.rows == {"samples": [(1,), (3,)], "goodput": [(2,)]}
    pending.add(SAMPLES, (4,))
    pending.end(("end a",))
    pending.begin("b", ("run b",))
    pending.add(SAMPLES, (5,))
    second, third = pending.take()
    assert (second.run_id, second.rows, second.end) == ("a", {"samples": [(4,)]}, ("end a",))
    assert (third.run_id, third.rows, third.end) == ("b", {"samples": [(5,)]}, None)


def test_attempts_leave_half_of_the_room_to_all_others() -> None:
    dropped: Drops = {}
    pending = PendingRows(10, NO_BOUND, dropped)
    pending.begin("a", ())
    assert [pending.add(ATTEMPTS, ()) for _ in range(6)] == [True] * 5 + [False]
    assert [pending.add(SAMPLES, ()) for _ in range(6)] == [True] * 5 + [False]
    assert dropped == {"attempts": {"rows": 1}, "samples": {"rows": 1}}


def test_long_texts_count() -> None:
    dropped: Drops = {}
    pending = PendingRows(NO_BOUND, ROW_BYTES["samples"] + 10, dropped)
    pending.begin("a", ())
    assert not pending.add(SAMPLES, (), text_bytes=11)
    assert pending.add(SAMPLES, (), text_bytes=10)
    assert dropped == {"samples": {"bytes": 1}}


def test_what_is_being_written_takes_room_until_it_is() -> None:
    pending = PendingRows(1, NO_BOUND, {})
    pending.begin("a", ())
    assert pending.add(SAMPLES, ())
    portions = pending.take()
    assert not pending.add(SAMPLES, ())
    pending.written(portions)
    assert pending.add(SAMPLES, ())


@given(
    st.integers(1, 50),
    st.integers(100, 20_000),
    st.lists(st.sampled_from([*("samples", "goodput", "attempts") * 5, "take", "written", "next"])),
)
def test_nothing_is_lost_but_what_is_counted_and_no_bound_is_passed(
    rows_max: int, bytes_max: int, steps: list[str]
) -> None:
    dropped: Drops = {}
    pending = PendingRows(rows_max, bytes_max, dropped)
    pending.begin("0", ())
    kept: list[tuple[str, str, int]] = []
    found: list[tuple[str, str, int]] = []
    taken = []
    run, lost = 0, 0
    for number, step in enumerate([*steps, "take"]):
        if step == "take":
            portions = pending.take()
            taken += portions
            found += [
                (portion.run_id, name, value)
                for portion in portions
                for name, rows in portion.rows.items()
                for (value,) in rows
            ]
        elif step == "written":
            pending.written(taken)
            taken = []
        elif step == "next":
            pending.end(())
            run += 1
            pending.begin(str(run), ())
        elif pending.add(TABLES[step], (number,)):
            kept.append((str(run), step, number))
        else:
            lost += 1
        assert 0 <= pending.rows_count <= rows_max
        assert 0 <= pending.size_bytes <= bytes_max
    assert sorted(found) == sorted(kept)
    assert sum(sum(by_bound.values()) for by_bound in dropped.values()) == lost
    pending.written(taken)
    assert (pending.rows_count, pending.size_bytes) == (0, 0)
