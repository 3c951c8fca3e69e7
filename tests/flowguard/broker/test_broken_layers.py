"""A failure between a socket and MQTT ends that connection, and is logged; the others go on."""

import socket
from contextlib import suppress
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from flowguard.broker.server import listen
from flowguard.broker.sockets.listening import Doorway
from flowguard.broker.sockets.reactor import Reactor, ServerLink
from flowguard.broker.sockets.socket_set import READ, WRITE
from flowguard.codec.packets import Disconnect
from flowguard.types import ReasonCode
from tests.support.layers import BROKEN_AT, BrokenLayer
from tests.support.real import Wire, broker, connect, connect_packet, until
from tests.support.stage import Stage

HOST = "127.0.0.1"


@pytest.mark.parametrize(("method", "established"), BROKEN_AT)
async def test_a_layer_that_fails_ends_its_connection_and_no_other(
    method: str, established: bool
) -> None:
    broken = Doorway(
        listen(HOST, 0), websocket=lambda sock, *_: BrokenLayer(sock, method, established)
    )
    with capture_logs() as said:
        async with broker(listener=[Doorway(listen(HOST, 0)), broken]) as running:
            witness = await connect(running, "witness")
            wire = Wire(await trio.open_tcp_stream(HOST, running.addresses[1].port or 0), 5)
            with suppress(trio.BrokenResourceError):
                await wire.send(connect_packet("c"), Disconnect(ReasonCode.SUCCESS))
                while await wire.receive() is not None:
                    pass
            await until(lambda: running.node.connections_count == 1)
            await witness.ping()
            await witness.close()
            await wire.close()
    told = [line for line in said if line["event"] == "connection failed"]
    assert [str(line["exc_info"]) for line in told] == [method]


@pytest.fixture
def alone() -> Any:
    """A reactor with one client whose CONNECT has not come."""
    stage = Stage()
    reactor = Reactor(stage.node, stage.store, lambda: stage.now_s, lambda: False)
    ours, theirs = socket.socketpair()
    link = ServerLink(ours, READ)
    link.connection = stage.node.opened(link, stage.now_s)
    reactor.sockets.add(link)
    yield reactor, link
    reactor.close()
    theirs.close()


def test_a_socket_that_the_kernel_does_not_watch_any_more_is_closed(alone: Any) -> None:
    """As where other programs have taken all the watches that there may be."""
    reactor, link = alone
    reactor.sockets._epoll.unregister(link.fd)
    reactor.sockets.set_interest(link, READ | WRITE)
    assert link.fd == -1
    assert link.connection.ended
    assert reactor.is_empty


def test_a_listener_that_cannot_be_watched_now_is_asked_for_again(alone: Any) -> None:
    reactor, _ = alone
    reactor.listen(Doorway(listen(HOST, 0)), 10)
    listeners = reactor.sockets.listeners
    (fd,) = listeners._doorways
    listeners._resting.append(fd)  # It is watched already: to do so again is an error.
    reactor.sweep()
    assert listeners._resting == [fd]
    reactor.sockets._epoll.unregister(fd)
    reactor.sweep()
    assert listeners._resting == []
