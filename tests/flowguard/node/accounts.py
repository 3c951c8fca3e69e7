"""Accounts: the packets of clients of a slow store: sent, in process, and done.

The store hangs (`Stage.hold_commits`), and each step does one of two things. Either clients send
and connect, and no work can be completed (`Bank.admitted`). Or the store finishes a batch, and no
packet can be admitted yet (`Bank.finished`). So the difference that a step makes to a window is the
work admitted, or finished. Because packets of a client are taken in order, and weigh at least one,
it identifies those packets.
"""

from dataclasses import dataclass, field

from flowguard.codec.encoder import encode
from flowguard.codec.packets import Packet, Puback, Pubrec, Suback
from flowguard.flow import AdmissionWindow
from flowguard.session.states import State
from flowguard.types import MQTT_311
from tests.support.stage import Client, Stage

READ_BYTES = 64 * 1024
"""Maximum number of bytes of one read from a socket."""


@dataclass(eq=False)
class Account:
    """One connection and its socket; `sent` in the order of sending."""

    client: Client
    version: int = MQTT_311
    window: AdmissionWindow | None = None
    """Kept beyond the end of the connection: what is in process then goes on."""
    unread: bytearray = field(default_factory=bytearray)
    """In the socket: the node has not read it."""
    sent: list[tuple[int, int, int]] = field(default_factory=list)
    """Packets that count: identifier, cost, bytes."""
    admitted: int = 0
    """How many of `sent`."""
    done: int = 0
    answered: list[int] = field(default_factory=list)
    """Identifiers acknowledged, in their order."""

    def write(self, *packets: Packet) -> None:
        """Into the socket; `Bank.read` takes it from there."""
        for packet in packets:
            self.unread += encode(packet, self.version)

    @property
    def in_process(self) -> int:
        """Cost of what was admitted and is not done."""
        return sum(cost for _, cost, _ in self.sent[self.done : self.admitted])

    @property
    def in_process_bytes(self) -> int:
        """Bytes of the packets in process."""
        return sum(size_bytes for *_, size_bytes in self.sent[self.done : self.admitted])

    @property
    def is_live(self) -> bool:
        return self.client.connection.state is State.CONNECTED

    def admit_to(self, in_process: int, limit: int) -> None:
        """The window has grown to `in_process` under `limit`: by which packets, and might it?"""
        assert in_process >= self.in_process, "admitted work was cancelled"
        while self.in_process < in_process:
            before = self.in_process
            assert before < max(1, limit), "admitted with the whole grant in process"
            assert self.admitted < len(self.sent), "admitted what was never sent"
            self.admitted += 1
            fits = self.in_process <= max(1, limit)
            assert fits or not before, "admitted beside others what does not fit"
        assert self.in_process == in_process

    def finish_to(self, in_process: int) -> None:
        """The window has shrunk to `in_process`: the oldest packets are done."""
        assert in_process <= self.in_process, "admitted while the store finished"
        while self.in_process > in_process:
            self.done += 1
        assert self.in_process == in_process

    def check_answers(self) -> None:
        """Completed packets are answered in order, as long as the client is connected."""
        self.answered += [
            packet.packet_id
            for packet in self.client.take()
            if isinstance(packet, Puback | Pubrec | Suback)
        ]
        sent = [packet_id for packet_id, *_ in self.sent]
        assert self.answered == sent[: len(self.answered)], "acknowledged out of order"
        if self.is_live:
            assert len(self.answered) == self.done


@dataclass(eq=False)
class Bank:
    """All accounts of a stage."""

    stage: Stage
    accounts: list[Account] = field(default_factory=list)
    _packet_id: int = 0

    def next_packet_id(self) -> int:
        """Never the same twice: a session may remember those of an earlier connection."""
        self._packet_id += 1
        return self._packet_id

    def open(self, client: Client) -> Account:
        account = Account(client)
        self.accounts.append(account)
        return account

    def read(self) -> None:
        """Read sockets; something may be admitted."""
        self.read_sockets()
        self.admitted()

    def read_sockets(self) -> None:
        """As the reactor does: a chunk each, from those that are to be read."""
        moved = True
        while moved:
            moved = False
            for account in self.accounts:
                if account.unread and account.client.connection.wants_read:
                    chunk = bytes(account.unread[:READ_BYTES])
                    del account.unread[:READ_BYTES]
                    account.client.send_bytes(chunk)
                    moved = True

    def admitted(self) -> None:
        """Something may have been admitted, nothing may be done."""
        limit = self.stage.node.guard.window.limit
        for account in self._with_windows():
            assert account.window is not None
            account.admit_to(account.window.in_process, limit)

    def commit(self) -> None:
        """The store finishes one batch, then what waited for it goes on; and hangs again."""
        stage = self.stage
        batch, stage.held = stage.held, None
        if batch is not None:
            stage.make_durable(batch)
            stage.answer()
        for account in self._with_windows():
            assert account.window is not None
            account.finish_to(account.window.in_process)
        stage.settle()
        self.read()

    def drain(self) -> None:
        """The store finishes everything."""
        while self.stage.held is not None:
            self.commit()

    def _with_windows(self) -> list[Account]:
        for account in self.accounts:
            inbound = account.client.connection.inbound
            if inbound is not None:
                account.window = inbound.window
        return [account for account in self.accounts if account.window is not None]
