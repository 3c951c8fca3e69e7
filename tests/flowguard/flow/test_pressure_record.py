"""What the nodes of a cluster tell each other, on the wire."""

from dataclasses import replace
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowguard.flow.cluster import PressureRecord
from flowguard.flow.signals import Signal
from tests.flowguard.flow.clusters import pressures, record

records = st.builds(
    PressureRecord,
    node=st.text(st.characters(codec="utf-8"), min_size=1, max_size=63),
    incarnation=st.integers(0, 2**64 - 1),
    sequence=st.integers(0, 2**64 - 1),
    window=st.floats(0.0, 65_535.0, exclude_min=True),
    pressure=pressures,
    cause=st.none() | st.sampled_from(Signal),
    connects_limit=st.integers(0, 2**32 - 1),
    leaving=st.booleans(),
)


@given(records)
def test_what_is_decoded_is_what_was_encoded(one: PressureRecord) -> None:
    data = one.to_bytes()
    assert PressureRecord.from_bytes(data) == one
    assert len(data) == 40 + len(one.node.encode())


@given(st.binary(max_size=64) | st.binary(max_size=64).map(lambda tail: b"\x01\x00" + tail))
def test_any_bytes_are_a_record_or_a_value_error(data: bytes) -> None:
    try:
        one = PressureRecord.from_bytes(data)
    except ValueError:
        return
    assert one.to_bytes() == data


@given(records, st.integers(min_value=0), st.binary(min_size=1, max_size=8))
def test_a_record_cut_short_or_with_a_tail_is_refused(
    one: PressureRecord, cut: int, tail: bytes
) -> None:
    data = one.to_bytes()
    for wrong in (data[: cut % len(data)], data + tail):
        with pytest.raises(ValueError, match="pressure record"):
            PressureRecord.from_bytes(wrong)


def test_every_wrong_field_is_named() -> None:
    good = record("a")
    data = bytearray(good.to_bytes())

    def changed(at: int, value: int) -> bytes:
        wrong = bytearray(data)
        wrong[at] = value
        return bytes(wrong)

    for wrong, text in (
        (b"", "version 1 expected, found none"),
        (changed(0, 2), "version 1 expected, found 2"),
        (changed(1, 3), "unknown flags 0x03"),
        (changed(34, 6), "unknown cause 6"),
        (changed(39, 0), "1 bytes of node, 1 expected"),
        (changed(39, 0)[:40], "0 bytes of node, 1 expected"),
        (changed(39, 9), "1 bytes of node, 9 expected"),
        (changed(40, 0xFF), "not UTF-8"),
        (replace(good, window=0.0).to_bytes(), "window 0.0"),
        (replace(good, window=nan).to_bytes(), "window nan"),
        (replace(good, window=inf).to_bytes(), "window inf"),
        (replace(good, window=65_536.0).to_bytes(), "window 65536.0"),
        (replace(good, pressure=-1.0).to_bytes(), "pressure -1.0"),
        (replace(good, pressure=nan).to_bytes(), "pressure nan"),
        (replace(good, pressure=16.1).to_bytes(), "pressure 16.1"),
    ):
        with pytest.raises(ValueError, match=text):
            PressureRecord.from_bytes(wrong)


def test_the_layout_on_the_wire_is_stable() -> None:
    one = PressureRecord("n1", 2, 3, 100.0, 1.5, Signal.STORE, 16, leaving=True)
    assert one.to_bytes().hex(" ", 8) == bytes.fromhex(
        "01 01 0000000000000002 0000000000000003 4059000000000000 3ff8000000000000"
        "03 00000010 02 6e31"
    ).hex(" ", 8)
