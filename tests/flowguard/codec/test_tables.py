from flowguard.codec import tables as t
from flowguard.types import ReasonCode


def test_every_reason_code_of_the_tables_exists() -> None:
    known = {int(code) for code in ReasonCode}
    for name in dir(t):
        if "_REASONS" in name:
            assert getattr(t, name) <= known, name


def test_publish_flags_by_nibble() -> None:
    assert len(t.PUBLISH_FLAGS) == 16
    assert t.PUBLISH_FLAGS[0b0000] == (0, False, False)
    assert t.PUBLISH_FLAGS[0b0001] == (0, True, False)
    assert t.PUBLISH_FLAGS[0b0010] == (1, False, False)
    assert t.PUBLISH_FLAGS[0b0101] == (2, True, False)
    assert t.PUBLISH_FLAGS[0b1011] == (1, True, True)
    assert t.PUBLISH_FLAGS[0b1100] == (2, False, True)
    illegal = [n for n in range(16) if t.PUBLISH_FLAGS[n] is None]
    assert illegal == [0b0110, 0b0111, 0b1000, 0b1001, 0b1110, 0b1111]


def test_return_codes_of_311_come_back() -> None:
    for number, code in enumerate(t.CONNACK_FROM_311):
        assert t.CONNACK_TO_311.get(code, 3) == number


def test_every_connack_reason_has_a_return_code() -> None:
    for code in t.CONNACK_REASONS:
        assert t.CONNACK_TO_311.get(code, 3) in range(6)
        assert (t.CONNACK_TO_311.get(code, 3) == 0) == (code == 0)
