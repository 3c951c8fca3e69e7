"""Players: clients with a character, each a legal peer (`support.peer`) on TCP.

`act` is called every turn of the run, `night` before every start of a broker. A player's actions
are drawn from the run's seed; they depend on the broker only by its answers.
"""

from collections import Counter
from random import Random

from flowguard.codec.packets import Will
from flowguard.types import MQTT_5, SESSION_NEVER_EXPIRES, Publish
from tests.support.peer import Member, Peer
from tests.torture.ledger import Account, Ledger, Message, message_of, payload_of
from tests.torture.wire import Line

SIZES_BYTES = (40, 40, 40, 40, 40, 40, 700, 700, 6_000)
"""Kept with the entry, shared between queues, in a blob file."""
BURST_MAX = 5
OUTSTANDING_MAX = 20
PACKET_ID_MAX = 3 * OUTSTANDING_MAX


class Player:
    """Stays connected as well as it can, and answers everything at once."""

    def __init__(
        self,
        client_id: str,
        version: int,
        line: Line,
        ledger: Ledger,
        random: Random,
        *,
        expiry_s: int = SESSION_NEVER_EXPIRES,
        receive_maximum: int = 65_535,
        peer: type[Peer] = Peer,
    ) -> None:
        self.line = line
        self.ledger = ledger
        self.random = random
        self.peer = peer(
            line,
            client_id,
            version,
            expiry_s,
            receive_maximum,
            packet_id_max=PACKET_ID_MAX,
        )
        self.calm = False
        """True at the end: no new work, and all players connect to get the remaining messages."""

    def start(self) -> None:
        """Make the durable session; called each turn until all players are ready (`is_ready`)."""
        peer = self.peer
        if peer.online and peer.expiry_s and not peer.is_durable:
            peer.disconnect()  # 3.1.1 had to start clean; the next connection may be durable.

    @property
    def is_ready(self) -> bool:
        """The session stands, with its subscriptions."""
        peer = self.peer
        return peer.online and not peer.asked and (peer.is_durable or not peer.expiry_s)

    def night(self) -> None:
        """A broker has ended, another one is about to start."""

    def act(self) -> None:
        """One turn."""
        if self.peer.wire is None:
            self.come()
        else:
            self.listen()

    def come(self) -> None:
        if self.line.dial():
            self.peer.connect()

    def listen(self) -> None:
        self.peer.receive(1_000)
        if self.peer.online:
            self.peer.acknowledge(everything=True)

    @property
    def is_idle(self) -> bool:
        """Nothing is left to be done."""
        peer = self.peer
        return peer.online and not (peer.unacked or peer.in_use or peer.asked)


class Publisher(Player):
    """Numbered messages, several outstanding, QoS 1 and 2."""

    def __init__(self, *given: object, topics: list[str], retain: bool = False) -> None:
        super().__init__(*given)  # type: ignore[arg-type]
        self.ledger.watch(self.peer)
        self._topics = topics
        self._retain = retain

    def listen(self) -> None:
        super().listen()
        if self.peer.online and not self.calm and self.random.random() < 0.3:
            self.publish(self.random.randint(1, BURST_MAX))

    def publish(self, count: int) -> None:
        """Publish `count` messages, or as many as allowed."""
        peer = self.peer
        room = min(peer.may_publish, OUTSTANDING_MAX - len(peer.unacked), count)
        messages = []
        for _ in range(room):
            index = self.random.randrange(len(self._topics))
            # A retained topic has one QoS: only that keeps its order.
            qos = 1 + index % 2 if self._retain else self.random.choice((1, 2))
            size_bytes = self.random.choice(SIZES_BYTES)
            topic = self._topics[index]
            messages.append(
                self.ledger.publish(peer.client_id, topic, qos, size_bytes, retain=self._retain)
            )
        if messages:
            peer.publish(*messages)


class Subscriber(Player):
    """Subscribed once and for all."""

    def __init__(
        self,
        *given: object,
        filters: dict[str, int],
        account: Account | None = None,
        laziness: float = 0.0,
        sleeps: bool = False,
        receive_maximum: int = 65_535,
        expiry_s: int = SESSION_NEVER_EXPIRES,
    ) -> None:
        """`filters` with the QoS asked for; `laziness`: turns without acknowledgements, 0 to 1;
        `sleeps`: away for whole lives of brokers."""
        account = account or Account(str(given[0]))
        peer = Member if account.shared else Peer
        super().__init__(
            *given,  # type: ignore[arg-type]
            receive_maximum=receive_maximum,
            peer=peer,
            expiry_s=expiry_s,
        )
        self.ledger.watch(self.peer, account)
        self._filters = filters
        self._laziness = laziness
        self._sleeps = sleeps
        self._nights = 0
        """Number of broker starts before it reconnects."""

    def start(self) -> None:
        super().start()
        peer = self.peer
        if peer.online and not peer.asked:
            for filter, qos in self._filters.items():
                if filter not in peer.subscriptions:
                    peer.subscribe(filter, qos)

    @property
    def is_ready(self) -> bool:
        return super().is_ready and self.peer.subscriptions.keys() == self._filters.keys()

    def night(self) -> None:
        self._nights = max(0, self._nights - 1)

    def act(self) -> None:
        if self._nights and not self.calm:
            return
        super().act()
        if self._sleeps and not self.calm and self.peer.online and self.random.random() < 0.02:
            self._nights = self.random.randint(1, 8)
            if self.random.random() < 0.5:
                self.peer.disconnect()
            else:
                self.peer.close()

    def listen(self) -> None:
        if self.calm or self.random.random() >= self._laziness:
            super().listen()
            return
        self.peer.receive(self.random.randint(0, 10))
        if self.peer.online:
            for _ in range(self.random.randint(0, 3)):
                self.peer.acknowledge(choice=self.random.randrange(3))


class Visitor(Player):
    """Comes and goes, subscribes and unsubscribes, ends its session and begins another one."""

    def __init__(self, *given: object, filter: str) -> None:
        super().__init__(*given)  # type: ignore[arg-type]
        self.ledger.watch(self.peer, Account(self.peer.client_id))
        self._filter = filter

    @property
    def is_ready(self) -> bool:
        return True

    def act(self) -> None:
        if self.peer.wire is None and not self.calm and self.random.random() < 0.9:
            return
        super().act()

    def listen(self) -> None:
        peer = self.peer
        asked = bool(peer.asked)
        super().listen()
        if not peer.online or peer.asked:
            return
        if asked and self._filter not in peer.subscriptions:
            self.ledger.unsubscribed(peer)
        if not peer.is_durable:
            self.start()
        elif not self.calm and self.random.random() < 0.05:
            self.random.choice((self._change, self._change, self._leave, peer.close))()

    def _change(self) -> None:
        peer = self.peer
        if self._filter in peer.subscriptions:
            self.ledger.unsubscribes(peer)
            peer.unsubscribe(self._filter)
        else:
            self.ledger.subscribes(peer)
            peer.subscribe(self._filter, 2)

    def _leave(self) -> None:
        """End the session, in the one way or the other: at once, or when it starts clean."""
        if self.peer.version == MQTT_5 and self.random.random() < 0.5:
            self.peer.disconnect(0)
        else:
            self.peer.give_up()


class Mortal(Player):
    """Leaves a will: due once for every connection that ends without its word."""

    def __init__(self, *given: object, topic: str, qos: int) -> None:
        super().__init__(*given)  # type: ignore[arg-type]
        self.ledger.watch(self.peer)
        self._topic = topic
        self._qos = qos
        self._will: Message | None = None

    def come(self) -> None:
        if self.line.dial():
            client_id = self.peer.client_id
            self._will = will = self.ledger.message(client_id, self._topic, self._qos, 40)
            payload = payload_of(will.number, client_id, 40)
            self.peer.will = Will(self._topic, payload, self._qos, False)
            self.peer.connect()

    def dies(self) -> None:
        """The broker, or the connection, is about to end without a DISCONNECT."""
        if self._will is not None:
            self.ledger.bequeath(self._will, owed=self.peer.online)
        self._will = None


class Reader(Player):
    """Asks now and then what is retained: never less than what was acknowledged before.

    If it `repeats`, less may come for a while: it asks again, and is not idle until it has all.
    """

    def __init__(self, *given: object, filter: str) -> None:
        super().__init__(*given, expiry_s=0)  # type: ignore[arg-type]
        self.peer.on_delivered = self._on_retained
        self._filter = filter
        self.repeats = False
        self._floors: Counter[str] = Counter()
        self._found: Counter[str] = Counter()

    def listen(self) -> None:
        super().listen()
        peer = self.peer
        if not peer.online or peer.asked:
            return
        subscribed = self._filter in peer.subscriptions
        if not self.calm and self.random.random() < 0.9:
            return
        if not subscribed:
            self._floors = Counter(self.ledger.retained)
            self._found.clear()
            peer.subscribe(self._filter, 1)
        elif not self.calm or self._is_behind:
            peer.close()

    @property
    def _is_behind(self) -> bool:
        return any(number < self._floors[topic] for topic, number in self._found.items())

    def _on_retained(self, peer: Peer, publish: Publish) -> None:
        number = message_of(publish).number
        self._found[publish.topic] = number
        if number < self._floors[publish.topic] and not self.repeats:
            self.ledger.find(
                f"{peer.client_id}: {number} is retained on {publish.topic}, "
                f"{self._floors[publish.topic]} was acknowledged and is lost"
            )

    @property
    def is_idle(self) -> bool:
        has_all = self._floors.keys() <= self._found.keys() and not self._is_behind
        return super().is_idle and has_all
