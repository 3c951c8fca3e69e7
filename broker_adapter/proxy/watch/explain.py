"""The answer of `/explain/CLIENT_ID`: what the proxy knows of a client, and why it waits."""

from broker_adapter.proxy.core import ProxyCore
from broker_adapter.proxy.outgoing import OUT_BYTES
from broker_adapter.proxy.pair import ProxyPair
from broker_adapter.proxy.states import CONNECTED, CONNECTING, DIALING, OFFERED
from broker_adapter.proxy.watch.clients import address_of
from broker_adapter.proxy.watch.face import Face
from flowguard.flow import Pause
from flowguard.lines import count
from flowguard.ops.common.explanation import (
    AnyConnected,
    Cause,
    Explained,
    LastEnd,
    last_end,
)
from flowguard.ops.condition import duration
from flowguard.ops.explain_words import clock_text, end_sentences, window_sentences
from flowguard.ops.pressure import decisions_of
from flowguard.ops.status import Use
from flowguard.types import PROTOCOLS


def explained(face: Face, client_id: str) -> Explained | None:
    """Return the state of a client, or None if it has no connection and left none."""
    core, now_s = face.core, face.clock()
    pair, end = core.lives.clients.get(client_id), last_end(core.counters.lives, client_id)
    if pair is None and end is None:
        return None
    grant = core.guard.grant
    paused = [] if pair is None else _causes(core, pair, now_s)
    found = Explained(
        client_id=client_id,
        user="" if pair is None else pair.tenant,
        last_end=end,
        now_s=now_s,
        connected=None if pair is None else _connected(pair, now_s),
        paused=paused,
        window=grant.window,
        why=grant.why,
        decisions=decisions_of(face),
        sentences=[
            *_sentences(client_id, pair, end, now_s),
            *(f"It waits: {cause['text']}." for cause in paused),
            *window_sentences(grant.window, grant.why),
        ],
    )
    if pair is not None:
        found["held"] = Use(used=pair.held_count, limit=None)
    return found


def _connected(pair: ProxyPair, now_s: float) -> AnyConnected | None:
    if pair.state is not CONNECTED or pair.window is None:
        return None
    return AnyConnected(
        protocol=PROTOCOLS.get(pair.version, "3.1"),
        since_s=pair.life.connected_s,
        address=address_of(pair),
        silent_s=max(0.0, now_s - pair.client.last_received_s),
        window=Use(used=pair.window.in_process, limit=pair.window.limit),
        outbox_bytes=Use(used=pair.to_client.size_bytes, limit=OUT_BYTES),
    )


def _sentences(
    client_id: str, pair: ProxyPair | None, end: LastEnd | None, now_s: float
) -> list[str]:
    if pair is None:
        return [f"{client_id} is not connected through this proxy.", *end_sentences(end, now_s)]
    if pair.state is not CONNECTED:
        since = duration(now_s - pair.offered_s)
        found = [f"{client_id} has sent CONNECT from {address_of(pair)} {since} ago."]
    else:
        assert pair.broker is not None
        found = [
            f"{client_id} is connected from {address_of(pair)} to {pair.broker.name} "
            f"(MQTT {PROTOCOLS.get(pair.version, '3.1')}).",
            f"It has been connected since {clock_text(pair.life.connected_s, now_s)}.",
        ]
    if pair.tenant:
        found.append(f"The user name in its CONNECT is {pair.tenant}.")
    return found + end_sentences(end, now_s)


def _causes(core: ProxyCore, pair: ProxyPair, now_s: float) -> list[Cause]:
    """Return the reasons why its CONNECT or its packets wait."""
    upstream = pair.broker
    waited = duration(now_s - pair.offered_s)
    if pair.state is OFFERED:
        text = f"its CONNECT has been in the connect queue for {waited}"
        return [Cause(reason="connect_queue", text=text)]
    if pair.state is DIALING:
        text = f"no broker behind the proxy has answered for {duration(core.away_s(now_s))}"
        if upstream is not None:
            text = f"the connection to {upstream.name} is being opened"
        return [Cause(reason="upstream", text=text)]
    if pair.state is CONNECTING and upstream is not None:
        text = f"{upstream.name} has not answered its CONNECT for {waited}"
        return [Cause(reason="upstream", text=text)]
    found = []
    if pair.held_count:
        found.append(_held(core, pair, now_s))
    if pair.to_client.size_bytes:
        text = f"it does not read: {pair.to_client.size_bytes:,} bytes wait for its socket"
        found.append(Cause(reason=str(Pause.SOCKET), text=text))
    return found


def _held(core: ProxyCore, pair: ProxyPair, now_s: float) -> Cause:
    window, node, upstream = pair.window, core.guard.window, pair.broker
    assert window is not None
    assert upstream is not None
    held = f"{count(pair.held_count, 'packet')} in the proxy"
    if window.is_full:
        text = (
            f"{held}, because {window.in_process:,} of {window.limit:,} in process, its window, "
            f"are not acknowledged by {upstream.name}; the oldest packet of all clients there has "
            f"waited for {duration(upstream.age_s(now_s))}"
        )
        return Cause(reason=str(Pause.WINDOW), text=text)
    text = (
        f"{held}, because clients take turns: {count(node.in_process, 'packet')} of all clients "
        "in process, which is the limit of the proxy now"
    )
    return Cause(reason=str(Pause.TURN), text=text)
