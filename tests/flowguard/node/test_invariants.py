"""Windows of clients with a slow store, for packets of any weight.

Invariants 1 to 3 of docs/explain/overload.md, "What must hold".

A durable subscriber, five for the wide topic, are offline: each PUBLISH of QoS 1 and 2 goes through
the journal and counts. `accounts` computes the work in process independently of the node's sums.
"""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from flowguard.codec.packets import Connect, Disconnect, Pubrel, Subscribe
from flowguard.config import MIB
from flowguard.flow.windows.cost import JOURNALS
from flowguard.session.inbound.input import LOOKAHEAD_BYTES
from flowguard.session.states import State
from flowguard.types import MQTT_311, Publish, SubscriptionOptions
from tests.flowguard.node.accounts import READ_BYTES, Account, Bank
from tests.support.stage import Stage

EXAMPLES = settings.default.max_examples
WHICH = st.integers(0, 3)
WIDE_DELIVERIES = 5


class SlowStore(RuleBasedStateMachine):
    """The common part: clients that publish, and a store that finishes batch by batch."""

    def start(self, flow: dict[str, Any], session: dict[str, int] | None = None) -> None:
        self.stage = Stage({"flow": flow, "session": session or {}})
        self.flow = self.stage.node.settings.flow
        for number in range(WIDE_DELIVERIES):
            subscriber = self.stage.connect_durable(f"s{number}", version=MQTT_311)
            subscriber.subscribe("wide" if number else "#", qos=2)
            subscriber.close()
        self.stage.hold_commits = True
        self.bank = Bank(self.stage)

    def connected(self, count: int) -> None:
        """Connect `count` durable publishers and wait for their CONNACKs."""
        for number in range(count):
            self.bank.open(self.stage.attempt(Connect(f"p{number}", MQTT_311, False)))
        self.bank.drain()

    def cost_of(self, topic: str, size_bytes: int) -> int:
        deliveries = WIDE_DELIVERIES if topic == "wide" else 1
        flow = self.flow
        cost = 1 + deliveries // flow.cost_deliveries + size_bytes // flow.cost_bytes
        # All of them are durable: each is an operation of the store.
        cost += deliveries // max(1, flow.journal_ops_max // (JOURNALS * flow.unfinished_max))
        return cost

    def send(self, account: Account, topic: str, packets: list[tuple[int, int]]) -> None:
        """A PUBLISH of each QoS and size, into the socket."""
        for qos, size_bytes in packets:
            packet_id = self.bank.next_packet_id() if qos else 0
            account.write(Publish(topic, bytes(size_bytes), qos, packet_id=packet_id))
            if qos:
                cost = self.cost_of(topic, size_bytes)
                account.sent.append((packet_id, cost, size_bytes))
        self.bank.read()

    def subscribe(self, account: Account) -> None:
        """It counts as one packet."""
        packet_id = self.bank.next_packet_id()
        filter = f"z/{packet_id}"
        account.write(Subscribe(packet_id, ((filter, SubscriptionOptions(1)),)))
        account.sent.append((packet_id, 1, len(filter)))
        self.bank.read()

    def tick(self, count: int) -> None:
        for _ in range(count):
            self.stage.advance(0.1)
            self.bank.read()

    def everything_is_done(self) -> None:
        self.bank.drain()
        for account in self.bank.accounts:
            assert account.done == account.admitted
            if account.is_live:
                assert account.done == len(account.sent)
                account.check_answers()


# --- 01: windows ---------------------------------------------------------------------------------


class Admissions(SlowStore):
    """Windows and weights; each admission is checked by `Account.admit_to`."""

    @initialize(
        window_max=st.integers(1, 12),
        unfinished=st.sampled_from([3, 4_096]),
        floor=st.sampled_from([0.2, 1.0]),
    )
    def starts(self, window_max: int, unfinished: int, floor: float) -> None:
        self.start(
            {
                "window_max": window_max,
                "window_floor": floor,
                "unfinished_max": unfinished,
                "cost_bytes": 500,
                "cost_deliveries": 2,
            }
        )
        self.connected(4)

    @rule(
        which=WHICH,
        topic=st.sampled_from(["narrow", "wide"]),
        packets=st.lists(
            st.tuples(st.sampled_from([1, 1, 2, 0]), st.sampled_from([0, 0, 600, 3_000])),
            min_size=1,
            max_size=12,
        ),
    )
    def publish(self, which: int, topic: str, packets: list[tuple[int, int]]) -> None:
        self.send(self.bank.accounts[which], topic, packets)

    @rule(which=WHICH)
    def ask(self, which: int) -> None:
        self.subscribe(self.bank.accounts[which])

    @rule(limit=st.integers(0, 12))
    def window_moves(self, limit: int) -> None:
        self.stage.node.guard.window.resize(limit)
        self.stage.settle()
        self.bank.admitted()

    @rule(pressure=st.sampled_from([0.0, 1.0, 16.0]), count=st.integers(1, 5))
    def law_moves_the_window(self, pressure: float, count: int) -> None:
        self.stage.node.guard.observer.replication(0.1 * pressure)
        self.tick(count)

    @rule()
    def store_finishes_a_batch(self) -> None:
        self.bank.commit()

    @invariant()
    def what_is_done_is_acknowledged_in_order(self) -> None:
        for account in getattr(self, "bank", Bank(None)).accounts:  # type: ignore[arg-type]
            account.check_answers()

    def teardown(self) -> None:
        if hasattr(self, "bank"):
            self.stage.node.guard.observer.replication(0.0)
            self.stage.advance(30.0)
            self.bank.read()
            self.everything_is_done()


def test_invariant_01_nothing_is_admitted_above_the_grant_and_a_shrink_cancels_nothing() -> None:
    run_state_machine_as_test(
        Admissions, settings=settings(max_examples=EXAMPLES // 2, stateful_step_count=30)
    )


def test_invariant_01_holds_for_a_packet_that_is_admitted_once_the_node_is_calm() -> None:
    admissions = Admissions()
    admissions.starts(window_max=10, unfinished=3, floor=0.2)
    admissions.law_moves_the_window(16.0, 5)
    admissions.ask(1)
    admissions.law_moves_the_window(0.0, 1)
    admissions.law_moves_the_window(0.0, 4)
    admissions.publish(0, "narrow", [(1, 0)])
    assert not admissions.bank.accounts[0].admitted
    admissions.teardown()
    assert admissions.bank.accounts[0].done == 1


# --- 02: conservation ----------------------------------------------------------------------------


class Conservation(SlowStore):
    """Clients come through a narrow gate and go in every way there is."""

    @initialize(
        connects=st.integers(1, 3),
        buffered=st.integers(0, 3),
        unfinished=st.sampled_from([2, 8, 4_096]),
        window_max=st.sampled_from([1, 5, 100]),
        journal_ops=st.sampled_from([4, 65_536]),
    )
    def starts(
        self, connects: int, buffered: int, unfinished: int, window_max: int, journal_ops: int
    ) -> None:
        self.start(
            {
                "window_max": window_max,
                "unfinished_max": unfinished,
                "cost_bytes": 500,
                "journal_ops_max": journal_ops,
                "connects_in_process_max": connects,
                "connect_buffer_max": buffered,
                "connect_patience_s": 2.0,
            },
        )
        self.current: dict[int, Account] = {}
        for which in range(4):
            self.connect(which, False)
        self.bank.drain()

    def live(self, which: int) -> Account | None:
        account = self.current.get(which)
        return None if account is None or account.client.is_closed else account

    @rule(which=WHICH, clean=st.booleans())
    def connect(self, which: int, clean: bool) -> None:
        """Anew, or in place of the connection that has its name."""
        account = self.current[which] = self.bank.open(self.stage.open(MQTT_311))
        account.write(Connect(f"p{which}", MQTT_311, clean))
        self.bank.read()

    @rule(
        which=WHICH,
        qos=st.sampled_from([1, 2]),
        sizes=st.lists(st.sampled_from([0, 600, 3_000]), min_size=1, max_size=12),
        leaves=st.booleans(),
    )
    def publish(self, which: int, qos: int, sizes: list[int], leaves: bool) -> None:
        """With its DISCONNECT waiting behind, or not."""
        account = self.live(which)
        if account is not None:
            self.send(account, "narrow", [(qos, size_bytes) for size_bytes in sizes])
            if leaves:
                self.leave(which, "disconnect")

    @rule(which=WHICH)
    def complete(self, which: int) -> None:
        """PUBREL for the first QoS 2 PUBLISH that was answered."""
        account = self.live(which)
        if account is not None and account.answered and account.is_live:
            account.write(Pubrel(account.answered[0]))
            self.bank.read()

    @rule(which=WHICH, how=st.sampled_from(["disconnect", "end of input", "reset", "cut off"]))
    def leave(self, which: int, how: str) -> None:
        account = self.live(which)
        if account is None:
            return
        connection = account.client.connection
        if how == "disconnect":
            account.write(Disconnect())
            self.bank.read()
        elif how == "end of input":
            connection.receive_eof(self.stage.now_s)
        elif how == "reset":
            connection.end(None, self.stage.now_s)
        else:
            account.client.send_bytes(b"\xff\xff\xff\xff\xff\xff")
        self.stage.settle()
        self.bank.read()

    @rule(count=st.sampled_from([1, 1, 30]))
    def time_passes(self, count: int) -> None:
        self.tick(count)

    @rule(count=st.integers(1, 3))
    def store_finishes_batches(self, count: int) -> None:
        for _ in range(count):
            self.bank.commit()

    @precondition(lambda self: hasattr(self, "bank"))
    @invariant()
    def all_is_accounted_for(self) -> None:
        node, bank = self.stage.node, self.bank
        window, accounts = node.guard.window, self.bank.accounts
        assert window.in_process == sum(account.in_process for account in accounts)
        assert window.in_process_bytes == sum(account.in_process_bytes for account in accounts)
        windows = {account.window for account in accounts if account.window is not None}
        assert set(window.busy) == {each for each in windows if each.in_process}
        assert window.permits == sum(each._permits for each in windows)
        states = [account.client.connection.state for account in bank.accounts]
        gate = node.guard.gate
        assert gate.in_process + gate.buffered == states.count(State.CONNECTING) + len(
            node.handshakes.abandoned
        )
        assert node.counters.clients_connected == states.count(State.CONNECTED)
        waiting = [account for account in accounts if account.client.connection.waits]
        assert node.state.paused_count == len(waiting)
        assert len(node.guard.pool) <= len(waiting)
        waiting_windows = {account.window for account in waiting}
        assert window.active == len({*window.busy, *waiting_windows})

    def teardown(self) -> None:
        if hasattr(self, "bank"):
            for account in self.bank.accounts:
                account.client.connection.end(None, self.stage.now_s)
            self.stage.settle()
            self.everything_is_done()
            self.all_is_accounted_for()
            node = self.stage.node
            window, gate = node.guard.window, node.guard.gate
            assert (window.in_process, window.in_process_bytes, window.permits) == (0, 0, 0)
            assert (len(window.busy), len(node.guard.pool), window.shared) == (0, 0, False)
            assert window.active == 0
            assert (gate.in_process, gate.buffered) == (0, 0)
            assert (node.connections_count, node.state.paused_count) == (0, 0)
            assert node.journal.is_empty


def test_invariant_02_what_was_admitted_is_done_or_in_process_whoever_leaves_and_when() -> None:
    run_state_machine_as_test(
        Conservation, settings=settings(max_examples=EXAMPLES // 2, stateful_step_count=40)
    )


# --- 03: bytes -----------------------------------------------------------------------------------

PACKET_BYTES_MAX = LOOKAHEAD_BYTES + READ_BYTES
"""As large as what is read ahead of a paused client: then it is what a reader can add."""


class Bytes(SlowStore):
    """Large packets; what is in process is bounded by the budget and one packet per reader."""

    @initialize(readers=st.integers(1, 4))
    def starts(self, readers: int) -> None:
        self.start({"unfinished_bytes_max": MIB}, {"packet_size_max": PACKET_BYTES_MAX})
        self.connected(readers)

    @rule(
        which=WHICH,
        count=st.sampled_from([1, 20]),
        size_bytes=st.sampled_from([1_000, 50_000, PACKET_BYTES_MAX - 20]),
    )
    def publish(self, which: int, count: int, size_bytes: int) -> None:
        accounts = self.bank.accounts
        self.send(accounts[which % len(accounts)], "narrow", [(2, size_bytes)] * count)

    @rule()
    def store_finishes_a_batch(self) -> None:
        self.bank.commit()

    @rule()
    def time_passes(self) -> None:
        self.tick(1)

    @precondition(lambda self: hasattr(self, "bank"))
    @invariant()
    def bytes_are_bounded(self) -> None:
        accounts = self.bank.accounts
        bound = MIB + len(accounts) * PACKET_BYTES_MAX
        assert self.stage.node.guard.window.in_process_bytes <= bound
        assert sum(account.in_process_bytes for account in accounts) <= bound

    def teardown(self) -> None:
        if hasattr(self, "bank"):
            self.everything_is_done()


def test_invariant_03_unfinished_bytes_are_within_the_budget_and_a_packet_per_reader() -> None:
    run_state_machine_as_test(
        Bytes, settings=settings(max_examples=EXAMPLES // 4, stateful_step_count=15)
    )
