"""Errors that the model check of links must find: the test of the test."""

from functools import partial

from flowguard.cluster import (
    NOT_OWED,
    IncomingStream,
    LinkConnection,
    LinkMessage,
    Mesh,
    OutgoingStream,
    OwedAddress,
)
from flowguard.cluster.frames import (
    Frame,
    LinkHello,
    MessageBatch,
    StreamDurable,
    StreamOpen,
    StreamRejected,
)
from tests.flowguard.cluster.clients import ClientConnection, Packet
from tests.flowguard.cluster.node import Node, Op, Parts, Then


class EarlyAnswer(Node):
    """Answers "durable up to n" before the commit."""

    def take(
        self,
        peer: str,
        messages: list[LinkMessage],
        mark: OwedAddress,
        then: Then,
        now_s: float,
    ) -> None:
        super().take(peer, messages, mark, lambda _: None, now_s)
        then(0.0)


class EarlyPuback(Node):
    """Acknowledges a QoS 1 message after the first of its commits."""

    def commits_awaited(self, has_ops: bool, targets_count: int) -> int:
        return 1


class NewestFirst(OutgoingStream):
    """Sends newer messages before those that are unanswered at a restart of the stream."""

    def end(self) -> None:
        waiting = [*self._unsent, *self._unanswered]
        super().end()
        numbers = sorted(each.number for each in waiting)
        self._unsent.clear()
        for number, each in zip(numbers, waiting, strict=True):
            each.number = number
            self._unsent.append(each)


class TakesNext(IncomingStream):
    """Takes the next batch although one is missing."""

    def take(self, batch: MessageBatch) -> list[LinkMessage]:
        self._taken = max(self._taken, batch.first - 1)
        return super().take(batch)


class SingleRejections(Mesh):
    """Rejects one batch and takes the next one of the same stream."""

    def _reject(self, connection: LinkConnection, reason: str) -> None:
        connection.control.append(StreamRejected(reason))

    def _reject_if_needed(self, connection: LinkConnection) -> bool:
        super()._reject_if_needed(connection)
        return bool(self._host.rejection())


class NoFencing(Mesh):
    """Takes frames of older connections and of incarnations that have ended."""

    def _meet(self, connection: LinkConnection, hello: LinkHello, now_s: float) -> None:
        member = self.members.peers[hello.name]
        newest, member.incarnation, member.is_dead = member.incarnation, 0, False
        super()._meet(connection, hello, now_s)
        member.incarnation = max(newest, hello.incarnation)

    def _asked(self, connection: LinkConnection, frame: Frame, now_s: float) -> None:
        newest = self._accepted.get(connection.peer, connection)
        self._accepted[connection.peer] = connection
        try:
            super()._asked(connection, frame, now_s)
        finally:
            self._accepted[connection.peer] = newest


class NumberAlone(IncomingStream):
    """The incarnation is not part of a message's address."""

    def meet(self, incarnation: int) -> None:
        self.end()
        self.incarnation = incarnation

    def open(self, opened: StreamOpen) -> StreamDurable:
        if self._taken < 0:
            return super().open(opened)
        self._taken = max(self._taken, opened.number - 1)
        return super().open(opened)


class PositionAlone(OutgoingStream):
    """The incarnation is not part of the address of an owed message."""

    def owe(self, data: bytes) -> OwedAddress:
        return 1, super().owe(data)[1]


class StaleCommit(IncomingStream):
    """Counts commits of messages of an earlier incarnation for the present one."""

    def committed(self, incarnation: int, number: int) -> StreamDurable | None:
        return super().committed(self.incarnation, number)


class NoMark(Node):
    """The mark is not committed with the QoS 2 messages."""

    def take(
        self,
        peer: str,
        messages: list[LinkMessage],
        mark: OwedAddress,
        then: Then,
        now_s: float,
    ) -> None:
        super().take(peer, messages, self.store.marks.get(peer, NOT_OWED), then, now_s)


class OwedBeforeCommit(Node):
    """Forwards a QoS 2 message before it has committed what it owes."""

    def publish_owed(
        self, client: str, packet_id: int, data: bytes, ops: list[Op], targets: list[str]
    ) -> None:
        super().publish_owed(client, packet_id, data, ops, targets)
        ops, then = self._journal.pop()
        assert isinstance(then, partial)
        for peer, address in then.args[3]:
            self.mesh.outgoing[peer].put_owed(address, data)
        self._journal.append((ops, partial(self.forward_owed, *then.args[:3], [])))


class EarlySuback(Node):
    """SUBACK does not wait for the peers."""

    def subscribed(self, suback: tuple[int, ClientConnection, Packet], now_s: float) -> None:
        suback[1].to_client.append(suback[2])


class IgnoresSuspects(Mesh):
    """SUBACK does not wait for a peer without a link, which may be alive."""

    def is_confirmed(self, number: int) -> bool:
        return self.own_filters.is_confirmed(number, self._accepted)


class NoFiltersYet(Mesh):
    """A node that starts takes peers with unknown filters as having none."""

    def targets(self, matched: object) -> set[str]:
        return set(matched)  # type: ignore[call-overload]


MUTANTS = {
    "early answer": Parts(EarlyAnswer),
    "early PUBACK": Parts(EarlyPuback),
    "newest first": Parts(Node, outgoing=NewestFirst),
    "single rejections": Parts(Node, mesh=SingleRejections, incoming=TakesNext),
    "no fencing by incarnation": Parts(Node, mesh=NoFencing),
    "incarnation not part of the address": Parts(Node, incoming=NumberAlone),
    "incarnation not part of the owed address": Parts(Node, outgoing=PositionAlone),
    "commits of an earlier incarnation count": Parts(Node, incoming=StaleCommit),
    "mark not committed": Parts(NoMark),
    "QoS 2 forwarded before the commit": Parts(OwedBeforeCommit),
    "SUBACK does not wait for peers": Parts(EarlySuback),
    "SUBACK does not wait for suspect peers": Parts(Node, mesh=IgnoresSuspects),
    "unknown filters are none": Parts(Node, mesh=NoFiltersYet),
}
