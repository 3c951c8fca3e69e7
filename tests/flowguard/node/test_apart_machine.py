"""Acknowledged messages arrive in order, with any store stopped and any class changed."""

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from flowguard.codec.packets import Puback, Pubrec
from tests.flowguard.node.test_apart import acknowledge, come, staged
from tests.support.stage import Client

NAMES = ("app-1", "changes", "d")
TOPICS = ("far", "near", "both")
FILTERS = {"app-1": ("far", "both"), "changes": ("both", "$share/g/far"), "d": ("near", "both")}


class Away(RuleBasedStateMachine):
    """Acknowledged messages come, in order per publisher and topic, once but for crashes."""

    @initialize(wide=st.booleans(), small=st.booleans())
    def start(self, wide: bool, small: bool) -> None:
        flow = {"journal_ops_max": 12} if small else {}
        self.stage = staged(session={"queue_messages_max": 1_000}, flow=flow)
        self.user: str | None = None
        self.clients: dict[str, Client] = {}
        self.got: dict[str, list[bytes]] = {name: [] for name in NAMES}
        self.acknowledged: list[bytes] = []
        self.sent: dict[tuple[str, int], bytes] = {}
        self.number = 0
        self.crashes = 0
        for name in NAMES:
            client = come(self.stage, name, receive_maximum=3)
            client.subscribe(*FILTERS[name], qos=2)
            self.clients[name] = client
        self._publishers()

    def _publishers(self) -> None:
        self.publishers = {name: self.stage.connect(name) for name in ("p", "q")}

    @rule(
        name=st.sampled_from(["p", "q"]),
        topic=st.sampled_from(TOPICS),
        qos=st.integers(1, 2),
        count=st.integers(1, 6),
    )
    def publish(self, name: str, topic: str, qos: int, count: int) -> None:
        for _ in range(count):
            self.number += 1
            payload = b"%s %s %d %d" % (name.encode(), topic.encode(), qos, self.number)
            packet_id = self.publishers[name].publish(topic, payload, qos=qos)
            self.sent[name, packet_id] = payload
        self._look()

    def _look(self) -> None:
        for name, publisher in self.publishers.items():
            for packet in publisher.inbox:
                if isinstance(packet, (Puback, Pubrec)):
                    assert packet.reason_code < 0x80
                    self.acknowledged.append(self.sent.pop((name, packet.packet_id)))
            acknowledge(publisher)

    @rule(what=st.sampled_from(["hold_apart", "hold_commits", "hold_fetches"]))
    def hold(self, what: str) -> None:
        setattr(self.stage, what, not getattr(self.stage, what))
        self.stage.settle()
        self._look()

    @rule(name=st.sampled_from(NAMES))
    def read(self, name: str) -> None:
        if name in self.clients:
            client = self.clients[name]
            self.got[name] += acknowledge(client)
            if client.is_closed:
                del self.clients[name]

    @rule(name=st.sampled_from(NAMES))
    def leave(self, name: str) -> None:
        self.read(name)
        client = self.clients.pop(name, None)
        if client is not None:
            client.close()

    @rule(name=st.sampled_from(NAMES))
    def come(self, name: str) -> None:
        if name not in self.clients:
            user = self.user if name == "changes" else None
            self.clients[name] = come(self.stage, name, user, receive_maximum=3)

    @rule(user=st.sampled_from([None, "spark"]))
    def change_class(self, user: str | None) -> None:
        self.leave("changes")
        self.user = user
        self.come("changes")

    @rule(seconds=st.sampled_from([0.1, 1.5]))
    def pass_time(self, seconds: float) -> None:
        self.stage.advance(seconds)
        self._look()

    @rule()
    def crash(self) -> None:
        for name in list(self.clients):
            self.read(name)
        self._look()
        self.clients.clear()
        self.crashes += 1
        self.stage.restart()
        self.sent.clear()
        self._publishers()

    def teardown(self) -> None:
        if not hasattr(self, "stage"):
            return
        stage = self.stage
        stage.hold_apart = stage.hold_commits = stage.hold_fetches = False
        for _ in range(100):
            stage.advance(0.2)
            self._look()
            for name in NAMES:
                self.come(name)
                self.read(name)
        assert not self.sent, "everybody is answered"
        window = stage.node.guard.window
        assert (window.in_process, window.in_process_bytes) == (0, 0)
        lane = stage.lane
        assert (lane.depth, lane.held_bytes) == (0, 0)
        assert not lane.apart._lines
        for name in NAMES:
            self._check(name)

    def _check(self, name: str) -> None:
        got = self.got[name]
        topics = [filter.split("/")[-1].encode() for filter in FILTERS[name]]
        owed = [each for each in self.acknowledged if each.split()[1] in topics]
        assert not set(owed) - set(got), "nothing is missing"
        firsts = list(dict.fromkeys(got))
        numbers: dict[tuple[bytes, ...], int] = {}
        for payload in firsts:
            *line, number = payload.split()
            assert int(number) > numbers.get(tuple(line), 0), (payload, got)
            numbers[tuple(line)] = int(number)


def test_nothing_is_lost_or_out_of_order_whatever_is_away_and_whoever_changes() -> None:
    run_state_machine_as_test(Away)
