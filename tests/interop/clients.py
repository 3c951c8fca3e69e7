"""The clients under test, and the marks that run a test once for each of them."""

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle

import pytest

from tests.interop.peer import Engines, Peer


@dataclass(frozen=True)
class Client:
    class_name: str
    versions: tuple[str, ...]
    is_library: bool = True
    """False: a pair of programs, which cannot change their mind after they have subscribed."""


CLIENTS = {
    "mosquitto": Client("Mosquitto", ("3.1", "3.1.1", "5.0"), is_library=False),
    "paho": Client("Paho", ("3.1", "3.1.1", "5.0")),
    "aiomqtt": Client("Aiomqtt", ("3.1", "3.1.1", "5.0")),
    "gmqtt": Client("Gmqtt", ("3.1.1", "5.0")),
    "mqttjs": Client("MqttJs", ("3.1", "3.1.1", "5.0")),
}


def _names(*, only_5: bool = False, only_libraries: bool = False) -> list[str]:
    return [
        f"{name} {version}"
        for name, client in CLIENTS.items()
        for version in client.versions
        if (version == "5.0" or not only_5) and (client.is_library or not only_libraries)
    ]


def _each(names: list[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("peer", names, indirect=True)


ALL = _names()
every_nameless = _each([name for name in _names(only_libraries=True) if name[-4:] != " 3.1"])
every_peer = _each(ALL)
every_library = _each(_names(only_libraries=True))
every_peer_with_5 = _each(_names(only_5=True))
every_library_with_5 = _each(_names(only_5=True, only_libraries=True))
every_qos = pytest.mark.parametrize("qos", [0, 1, 2])


def make_peer(name: str, port: int, engines: Engines, ports: Sequence[int] = ()) -> Peer:
    """ "gmqtt 5.0", for a broker on that port; skips the test where gmqtt is not installed.

    With `ports` of several nodes, each connection is to the next one.
    """
    client, version = name.split()
    module = importlib.import_module(f"tests.interop.{client}_peer")
    peer: Peer = getattr(module, CLIENTS[client].class_name)(version, port, engines)
    peer.require()
    if ports:
        peer.ports = cycle(ports)
    return peer


@contextmanager
def all_installed(port: int, engines: Engines, ports: Sequence[int] = ()) -> Iterator[list[Peer]]:
    """Every client in every version at one broker; skips the test if there is none at all."""
    peers: list[Peer] = []
    missing: list[str] = []
    for name in ALL:
        try:
            peers.append(make_peer(name, port, engines, ports))
        except pytest.skip.Exception as reason:
            missing.append(str(reason))
    if not peers:
        pytest.skip("\n".join(missing))
    try:
        yield peers
    finally:
        for peer in peers:
            peer.close()
