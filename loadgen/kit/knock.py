"""Knock: check that a broker serves one client: CONNECT, SUBSCRIBE, PUBLISH, and the message
returns."""

import ssl
from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple, TypeAlias, final

import trio

from flowguard.types import MQTT_5, MQTT_311, ReasonCode
from loadgen.storm.access import NOBODY
from loadgen.storm.loop import Fate
from loadgen.storm.plan import CrowdPlan, RetryMode, RetryPolicy, Target, TrafficPlan
from loadgen.storm.traffic import Traffic

Clock: TypeAlias = Callable[[], float]
PATIENCE_S: Final = 5.0
"""Time for a CONNACK of a broker without a crowd, and as much for the rest."""
PLAN: Final = TrafficPlan(1, 1, 1, outstanding=1, backlog=1, seconds=0.02, late_s=PATIENCE_S)


CREDENTIALS: Final = frozenset(
    (
        ReasonCode.BAD_USER_NAME_OR_PASSWORD,
        ReasonCode.NOT_AUTHORIZED,
        ReasonCode.BAD_AUTHENTICATION_METHOD,
    )
)
"""Reason codes by which a broker asks for other credentials. The codec reads return codes 4 and 5
of 3.1.1 as the first two."""


@final
class Knock(NamedTuple):
    """The result of a knock; `why` is empty if the client was served."""

    seconds: float
    why: str
    asks: str = ""
    """A demand of the broker that the kit does not meet, as credentials or TLS, or ""."""

    @property
    def served(self) -> bool:
        return not self.why


async def knock(target: Target, patience_s: float, clock: Clock) -> Knock:
    """Try until one client is served, or `patience_s` has passed."""
    began_s = clock()
    retry = RetryPolicy(RetryMode.FIXED, 0.2, 0.2)
    crowd = CrowdPlan(PLAN.clients, retry, min(PATIENCE_S, patience_s), patience_s)
    traffic = Traffic(target, PLAN, crowd, clock)
    await traffic.run()
    tally = traffic.crowd.tally
    if traffic.tally.received:
        why = ""
    elif tally.accepted:
        why = "it accepts a client, but a message does not come back"
    else:
        counts = [f"{count} {name}" for name, count in tally.failures.items() if count]
        counts += [f"{count} refused with 0x{code:02x}" for code, count in tally.refused.items()]
        counts += [f"{tally.busy} told to come back later"] * bool(tally.busy)
        why = f"no CONNACK within {patience_s:g} s: {', '.join(counts) or 'timed out'}"
    return Knock(clock() - began_s, why, _asks(traffic) if why else "")


def _asks(traffic: Traffic) -> str:
    tally, access = traffic.crowd.tally, traffic.loop.target.access
    if tally.fates[Fate.TLS]:
        return f"TLS ({tally.layer_fault}); see mqtts://, --cafile, --cert and --key"
    if tally.fates[Fate.WEBSOCKET]:
        return f"another WebSocket handshake ({tally.layer_fault}); check the address and its path"
    if codes := CREDENTIALS & tally.refused.keys():
        others = "credentials" if access.users == (NOBODY,) else "other credentials"
        return f"{others} (0x{min(codes):02x}); see --user, --password-file and --users"
    if CREDENTIALS & (traffic.tally.subscribe_refusals.keys() | traffic.tally.refusals.keys()):
        return "rights for its topics, storm-.../#, that its user does not have"
    return ""


async def greet(target: Target, clock: Clock, *, fall_back: bool) -> tuple[Target, Knock]:
    """Knock for the first time; `fall_back` tries 3.1.1 if the broker does not understand 5.0."""
    first = await knock(target, PATIENCE_S, clock)
    if first.why and not first.asks and await _wants_tls(target):
        return target, first._replace(asks="TLS; see mqtts:// and wss://")
    if first.served or not fall_back or target.version != MQTT_5 or first.asks:
        return target, first
    older = replace(target, version=MQTT_311)
    second = await knock(older, PATIENCE_S, clock)
    return (older, second) if second.served else (target, first)


async def _wants_tls(target: Target) -> bool:
    """Return True if the broker does a TLS handshake, but the kit is to connect without TLS."""
    if target.access.scheme.has_tls:
        return False
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with trio.move_on_after(PATIENCE_S):
        try:
            stream = await trio.open_tcp_stream(target.host, target.port)
            async with trio.SSLStream(stream, context, server_hostname=target.host) as tls:
                await tls.do_handshake()
                return True
        except (OSError, trio.BrokenResourceError):
            return False
    return False
