import pytest
from pydantic import ValidationError

from flowguard.address import Address, Scheme
from flowguard.errors import ConfigError
from flowguard.network_settings import NetworkSettings


@pytest.mark.parametrize(
    ("text", "address", "shown", "is_local"),
    [
        ("127.0.0.1:1883", (Scheme.MQTT, "127.0.0.1", 1883), "mqtt://127.0.0.1:1883", True),
        ("localhost:0", (Scheme.MQTT, "localhost", 0), "mqtt://localhost:0", True),
        ("mqtts://[::1]:8883", (Scheme.MQTTS, "::1", 8883), "mqtts://[::1]:8883", True),
        ("mqtts://[::]:8883", (Scheme.MQTTS, "::", 8883), "mqtts://[::]:8883", False),
        ("ws://0.0.0.0:80/", (Scheme.WS, "0.0.0.0", 80), "ws://0.0.0.0:80", False),
        ("wss://broker.example:443", (Scheme.WSS, "broker.example", 443), None, False),
        ("unix:/run/mqtt.sock", (Scheme.MQTT, "/run/mqtt.sock", None), None, True),
        (
            "unix:///run/mqtt.sock",
            (Scheme.MQTT, "/run/mqtt.sock", None),
            "unix:/run/mqtt.sock",
            True,
        ),
    ],
)
def test_an_address_is_read_and_shown(
    text: str, address: tuple[Scheme, str, int | None], shown: str | None, is_local: bool
) -> None:
    parsed = Address.parse(text)
    assert parsed == Address(*address)
    assert str(parsed) == (shown or text)
    assert parsed.is_local == is_local


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("http://127.0.0.1:1", "http:// is none of mqtt://, mqtts://, ws://, wss:// and unix:"),
        ("mqtt://1883", "1883: expected HOST:PORT"),
        ("mqtts://127.0.0.1:65536", "expected HOST:PORT"),
        ("unix:here.sock", "expected a whole path"),
        (f"unix:/{'a' * 107}", "a Unix socket has a path of 107 bytes at most"),
    ],
)
def test_what_is_no_address_is_named(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as error:
        Address.parse(text)
    assert complaint in str(error.value)
    with pytest.raises(ValidationError, match="listeners"):
        NetworkSettings.model_validate({"listeners": [text]})


def test_listeners_may_be_texts_tables_and_a_list_in_one_text() -> None:
    table = {"address": "mqtts://0.0.0.0:8883", "connections_max": 7}
    network = NetworkSettings.model_validate({"listeners": ["127.0.0.1:1883", table]})
    assert [item.address for item in network.listeners] == [
        "mqtt://127.0.0.1:1883",
        "mqtts://0.0.0.0:8883",
    ]
    assert network.listeners[1].connections_max == 7
    network = NetworkSettings.model_validate({"listeners": "127.0.0.1:1,mqtts://127.0.0.1:2"})
    assert len(network.listeners) == 2


def test_two_listeners_of_one_place_are_refused_whatever_they_speak() -> None:
    for one, other in (
        ("127.0.0.1:1883", "ws://127.0.0.1:1883"),
        ("unix:/run/a", "unix:///run/a"),
        ("[::1]:1", "mqtts://[::1]:1"),
    ):
        with pytest.raises(ValidationError, match="is listed more than once"):
            NetworkSettings.model_validate({"listeners": [one, "127.0.0.1:1", other]})
    several = ["127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:1", "[::1]:1"]
    assert len(NetworkSettings.model_validate({"listeners": several}).listeners) == 4


def test_two_certificates_for_one_name_are_refused() -> None:
    certs = [{"server_name": name, "cert": "c", "key": "k"} for name in ("A.example.", "a.example")]
    listener = {"address": "mqtts://127.0.0.1:1", "certs": certs}
    with pytest.raises(ValidationError, match=r"a\.example has more than one certificate"):
        NetworkSettings.model_validate({"listeners": [listener]})
