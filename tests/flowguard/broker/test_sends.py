"""Sockets with unsent bytes: a slice of the loop sends to a limited number, few before many."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from flowguard.broker.commits.presence import Presence
from flowguard.broker.sockets.reactor import Reactor, ServerLink
from flowguard.broker.sockets.socket_set import READ
from flowguard.codec.encoder import encode
from flowguard.codec.packets import Connect
from flowguard.node.loop.sends import SENDS_MAX
from flowguard.types import MQTT_5
from tests.support.stage import Stage

COUNT = SENDS_MAX + 100
PINGREQ = b"\xc0\x00"


class Crowd:
    """A reactor, and clients at the other end of their sockets; nothing turns by itself."""

    def __init__(self, count: int, stack: ExitStack, presence: Presence | None = None) -> None:
        self.stage = Stage()
        node, now_s = self.stage.node, self.stage.now_s
        self.reactor = Reactor(node, self.stage.store, lambda: now_s, lambda: False, presence)
        stack.callback(self.reactor.close)
        self.ends: list[socket.socket] = []
        self.links: list[ServerLink] = []
        for number in range(count):
            ours, theirs = socket.socketpair()
            stack.enter_context(theirs)
            theirs.setblocking(False)
            link = ServerLink(ours, READ)
            link.connection = node.opened(link, now_s)
            self.reactor.sockets.add(link)
            self.ends.append(theirs)
            self.links.append(link)
            self.says(number, encode(Connect(f"c{number}"), MQTT_5))
            self.settle()
            assert self.heard() == 1

    def says(self, number: int, data: bytes) -> None:
        self.links[number].connection.receive_data(data, self.stage.now_s)

    def settle(self) -> None:
        self.reactor.turns.end_slice(self.stage.now_s)

    def heard(self) -> int:
        """How many clients find something to read."""
        count = 0
        for end in self.ends:
            try:
                count += bool(end.recv(65_536))
            except BlockingIOError:
                continue
        return count


@pytest.fixture
def crowd() -> Iterator[Crowd]:
    with ExitStack() as stack:
        yield Crowd(COUNT, stack)


def test_many_are_sent_to_in_several_slices_and_few_before_them(crowd: Crowd) -> None:
    for number in range(1, COUNT):
        crowd.says(number, PINGREQ)
    crowd.settle()
    assert crowd.heard() == 1 + SENDS_MAX  # The newest one is sent to at once.
    assert not crowd.reactor.is_quiet
    crowd.says(0, PINGREQ)
    crowd.settle()
    assert crowd.heard() == COUNT - 1 - SENDS_MAX
    assert crowd.reactor.is_quiet


def test_the_loop_does_not_sleep_while_somebody_waits_for_its_turn(crowd: Crowd) -> None:
    for number in range(COUNT):
        crowd.says(number, PINGREQ)
    crowd.settle()
    heard = crowd.heard()
    assert crowd.reactor.turns.turn(crowd.stage.now_s)
    assert heard + crowd.heard() == COUNT
    assert not crowd.reactor.turns.turn(crowd.stage.now_s)


def test_who_has_left_meanwhile_is_passed(crowd: Crowd) -> None:
    for number in range(COUNT):
        crowd.says(number, PINGREQ)
    crowd.settle()
    for link in crowd.links[SENDS_MAX:]:
        crowd.reactor.sockets.close_link(link)
    crowd.settle()
    assert crowd.reactor.is_quiet
