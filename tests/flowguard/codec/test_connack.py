"""CONNACK, on the wire."""

import pytest

from flowguard.codec import Connack
from flowguard.errors import PeerError
from flowguard.types import Properties, ReasonCode
from tests.flowguard.codec.wire import MALFORMED, VIOLATION, decode, frame, props, text

GOOD_CONNACKS = [
    ("accepted", 4, b"\0\0", Connack()),
    ("accepted with session", 4, b"\1\0", Connack(True)),
    ("version refused", 4, b"\0\1", Connack(False, 0x84)),
    ("client id refused", 4, b"\0\2", Connack(False, 0x85)),
    ("server unavailable", 4, b"\0\3", Connack(False, 0x88)),
    ("bad user name or password", 4, b"\0\4", Connack(False, 0x86)),
    ("not authorized", 4, b"\0\5", Connack(False, 0x87)),
    ("3.1, which has no session present", 3, b"\xff\0", Connack()),
    ("accepted in 5.0", 5, b"\1\0\0", Connack(True)),
    (
        "refused in 5.0",
        5,
        b"\0\x89" + props(b"\x1f" + text("later")),
        Connack(False, 0x89, Properties(reason_string="later")),
    ),
]


@pytest.mark.parametrize(("name", "version", "body", "expected"), GOOD_CONNACKS)
def test_connack(name: str, version: int, body: bytes, expected: Connack) -> None:
    assert decode(frame(0x20, body), version, "client") == expected


@pytest.mark.parametrize(
    ("name", "version", "body", "error", "reason"),
    [
        ("nothing", 4, b"", *MALFORMED),
        ("no code", 4, b"\0", *MALFORMED),
        pytest.param(
            "reserved flags", 5, b"\2\0\0", *MALFORMED, marks=pytest.mark.spec("MQTT-3.2.2-1")
        ),
        ("reserved flags in 3.1.1", 4, b"\xff\0", *MALFORMED),
        ("a reserved return code", 4, b"\0\6", *MALFORMED),
        ("a reason code of 5.0", 4, b"\0\x89", *MALFORMED),
        pytest.param(
            "a reason code for others",
            5,
            b"\0\x8e\0",
            *VIOLATION,
            marks=pytest.mark.spec("MQTT-3.2.2-8"),
        ),
        pytest.param(
            "refused with session",
            5,
            b"\1\x89\0",
            *VIOLATION,
            marks=pytest.mark.spec("MQTT-3.2.2-6"),
        ),
        pytest.param(
            "refused with session in 3.1.1",
            4,
            b"\1\3",
            *VIOLATION,
            marks=pytest.mark.spec("v3:MQTT-3.2.2-4"),
        ),
        ("bytes left over", 4, b"\0\0\0", *MALFORMED),
        ("bytes left over in 5.0", 5, b"\0\0\0\0", *MALFORMED),
        ("no properties in 5.0", 5, b"\0\0", *MALFORMED),
    ],
)
def test_bad_connack(
    name: str, version: int, body: bytes, error: type[PeerError], reason: ReasonCode
) -> None:
    with pytest.raises(error) as caught:
        decode(frame(0x20, body), version, "client")
    assert type(caught.value) is error
    assert caught.value.reason_code == reason
