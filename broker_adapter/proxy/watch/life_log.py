"""Log lines of clients that connect, disconnect or are rejected; those of a broker (`LifeLog`)."""

from typing import Final, final

from broker_adapter.proxy.core import ProxyCore
from broker_adapter.proxy.life import BY_UPSTREAM, code_of
from broker_adapter.proxy.pair import ProxyPair
from broker_adapter.proxy.watch.clients import address_of
from flowguard.broker.logs.error_log import BoundedLog, PeerLog, printable
from flowguard.broker.logs.life_log import SHOWN_MAX
from flowguard.broker.sockets.link import Link
from flowguard.codec.tables import CONNACK_FROM_311
from flowguard.session.lives import End
from flowguard.types import MQTT_5, PROTOCOLS, ReasonCode


@final
class ProxyLog:
    """Logs what a proxy reports of its clients; `logs` are to be run."""

    def __init__(self, core: ProxyCore) -> None:
        self._peers = PeerLog()
        self._connected = BoundedLog("connected", "debug", "clients", SHOWN_MAX)
        self._disconnected = BoundedLog("disconnected", "debug", "clients", SHOWN_MAX)
        self.logs: Final = (*self._peers.logs, self._connected, self._disconnected)
        self._lives = core.counters.lives
        core.lives.on_connected = self.connected
        core.lives.on_ended = self.ended
        core.lives.on_rejected = self.rejected

    def connected(self, pair: ProxyPair) -> None:
        if not self._connected.may_show("clients"):
            return
        link = pair.client.transport
        doorway = link.doorway if isinstance(link, Link) else None
        self._connected.show(
            client_id=printable(pair.life.client_id),
            **({"user_name": printable(pair.tenant)} if pair.tenant else {}),
            address=address_of(pair),
            listener="" if doorway is None else str(doorway.address),
            version=PROTOCOLS.get(pair.version, "3.1"),
            upstream="" if pair.broker is None else pair.broker.name,
        )

    def ended(self, pair: ProxyPair, end: End) -> None:
        if self._disconnected.may_show(end.reason):
            self._disconnected.show(
                client_id=printable(pair.life.client_id),
                address=address_of(pair),
                reason=end.reason,
                by=end.by,
                connected_s=round(end.lasted_s, 3),
            )

    def rejected(self, pair: ProxyPair, code: int, why: str) -> None:
        reason = _reason(code, pair.version)
        if why == BY_UPSTREAM:
            self._lives.refused(reason)
        names = (pair.life.client_id, pair.tenant)
        self._peers.reject(lambda: address_of(pair), names, reason, why, is_client=False)


def _reason(code: int, version: int) -> ReasonCode:
    if version != MQTT_5 and code < len(CONNACK_FROM_311):
        return ReasonCode(CONNACK_FROM_311[code])
    return code_of(code) or ReasonCode.UNSPECIFIED_ERROR
