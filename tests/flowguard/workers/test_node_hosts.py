"""Addresses of nodes by name, also while a name server does not answer."""

import socket
from collections import Counter
from threading import Event
from typing import Any

import trio

from flowguard.app.workers.node_hosts import NodeHosts


class NameServer:
    """Answers at once, but for names whose answer is kept back."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}
        self.kept_back = Event()
        self.asked: Counter[str] = Counter()

    def look_up(self, host: str, port: None, **_: Any) -> Any:
        self.asked[host] += 1
        if host == "silent":
            self.kept_back.wait()
        if host not in self.known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [
            (socket.AF_INET6 if ":" in each else socket.AF_INET, 1, 6, "", (each, port))
            for each in self.known[host].split()
        ]


async def test_silent_name_delays_no_other_one_and_is_asked_once() -> None:
    server = NameServer()
    server.known = {"silent": "192.0.2.1", "second": "192.0.2.2"}
    hosts = NodeHosts(server.look_up)
    nodes = ["silent:7000", "second:7100", "192.0.2.3:7200"]
    await hosts.addresses(nodes)
    found = await hosts.addresses(nodes)
    assert found == {"second:7100": ("192.0.2.2", 7_100), nodes[2]: ("192.0.2.3", 7_200)}
    assert server.asked["silent"] == 1
    server.kept_back.set()
    with trio.fail_after(60):
        while "silent:7000" not in found:
            found = await hosts.addresses(nodes)
    assert found["silent:7000"] == ("192.0.2.1", 7_000)


async def test_address_changes_with_its_name_and_stays_while_the_name_is_unknown() -> None:
    server = NameServer()
    hosts = NodeHosts(server.look_up)
    assert await hosts.addresses(["pod:7000"]) == {}
    for address in ("192.0.2.1", "192.0.2.2"):
        server.known["pod"] = address
        assert await hosts.addresses(["pod:7000"]) == {"pod:7000": (address, 7_000)}
    server.known.clear()
    assert await hosts.addresses(["pod:7000"]) == {"pod:7000": ("192.0.2.2", 7_000)}


async def test_host_with_both_has_the_address_of_ipv4_at_which_its_node_listens() -> None:
    server = NameServer()
    server.known = {"both": "2001:db8::1 192.0.2.1", "new": "2001:db8::2"}
    hosts = NodeHosts(server.look_up)
    assert await hosts.addresses(["both:7000", "new:7000"]) == {
        "both:7000": ("192.0.2.1", 7_000),
        "new:7000": ("2001:db8::2", 7_000),
    }
    assert await hosts.addresses(["new:7000"]) == {"new:7000": ("2001:db8::2", 7_000)}
