"""Clients of a proxy: rows of their list, and the end of a connection."""

from broker_adapter.proxy.pair import ProxyPair, dismiss
from broker_adapter.proxy.reactor import ProxyReactor
from broker_adapter.proxy.states import CONNECTED
from broker_adapter.proxy.watch.face import Face
from flowguard.broker.sockets.link import Link
from flowguard.ops.lists.clients import ClientState, ListedClient
from flowguard.ops.talkers import ClientTraffic
from flowguard.ops.web.ask.changes import Changed
from flowguard.ops.web.http_connection import Response, json_response
from flowguard.types import PROTOCOLS, ReasonCode


def address_of(pair: ProxyPair) -> str:
    link = pair.client.transport
    return link.peer() if isinstance(link, Link) else "unknown"


def row_of(pair: ProxyPair) -> ListedClient:
    state = ClientState.PAUSED if pair.held_count else ClientState.CONNECTED
    return ListedClient(
        client_id=pair.life.client_id,
        state=str(state if pair.state is CONNECTED else ClientState.CONNECTING),
        user=pair.tenant,
        address=address_of(pair),
        protocol=PROTOCOLS.get(pair.version, "3.1"),
        inflight=0 if pair.window is None else pair.window.in_process,
    )


def traffic_of(pair: ProxyPair) -> ClientTraffic:
    received_bytes = pair.passed_bytes + pair.held_bytes
    is_connected = pair.state is CONNECTED
    sent_bytes = pair.client.sent_bytes
    return ClientTraffic(is_connected, received_bytes, sent_bytes, pair.held_count, pair.held_bytes)


async def end_client(face: Face, reactor: ProxyReactor, client_id: str) -> Response:
    """Disconnect a client, or reject its CONNECT."""
    pair, now_s = face.core.lives.clients.get(client_id), face.clock()
    if pair is None:
        return json_response({"error": "no connection of this client here"}, 404)
    was_connected = pair.state is CONNECTED
    if was_connected:
        dismiss(pair, ReasonCode.ADMINISTRATIVE_ACTION, now_s)
    else:
        pair.end(now_s)
    reactor.turns.end_slice(now_s)
    reactor.wake()
    return json_response(Changed(client_id=client_id, was_connected=was_connected))
