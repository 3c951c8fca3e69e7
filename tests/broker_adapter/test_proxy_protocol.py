"""The bytes that carry a client's address to an upstream."""

import pytest

from broker_adapter.proxy.protocol import SIGNATURE, header


def test_an_address_of_version_4() -> None:
    said = header(("192.0.2.1", 5_000), ("192.0.2.2", 1_883))
    assert said == SIGNATURE + bytes.fromhex("2111000c c0000201 c0000202 1388 075b")


def test_an_address_of_version_6() -> None:
    said = header(("2001:db8::1", 5_000, 0, 0), ("fe80::2%eth0", 1_883, 0, 2))
    assert said[:16] == SIGNATURE + bytes.fromhex("21210024")
    assert said[16:] == bytes.fromhex("20010db8" + "00" * 11 + "01" + "fe80" + "00" * 13 + "02") + (
        bytes.fromhex("1388075b")
    )


@pytest.mark.parametrize("end", [None, "/run/mqtt.sock", ""])
def test_what_is_no_tcp_is_said_to_be_ours(end: object) -> None:
    assert header(end, ("127.0.0.1", 1_883)) == SIGNATURE + b"\x20\x00\x00\x00"
