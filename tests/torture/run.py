"""Run: a broker that is killed again and again, and players that must not notice.

The life of a broker: it starts; at a random moment it gets SIGKILL; the bytes that it had sent
before are read to the last one; the next one starts on the same directory. At the end there is no
new work, and all players connect to get the messages owed to them. Then the broker ends properly,
after which nothing may come again.

The same seed gives the same players, plans and moments; the effect of a kill depends on clocks.
"""

import math
import selectors
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from signal import SIGKILL
from typing import NoReturn

from flowguard.codec.packets import Disconnect
from tests.support.patience import HANG_S
from tests.torture.cast import APPLICATIONS, cast, settings
from tests.torture.ledger import Ledger
from tests.torture.players import Mortal, Player, Publisher
from tests.torture.process import Broker, Start
from tests.torture.stores import APPLYING, LOGGING
from tests.torture.verdict import Moment, Verdict
from tests.torture.wire import TcpWire, reserve_port

TURN_S = 0.002
"""A turn waits no longer than that for something to come."""
PATIENCE_S = 120.0
"""Silence at the end after which nothing more will arrive."""
CONTROL_PATIENCE_S = 30.0
"""For controls, which may wait in vain: what was lost may be what a broker needs to go on."""
IN_A_MOMENT_S = 0.5
"""Time until a process whose connections have ended is gone; also if all is lost anyway."""

MOMENTS = {Moment.START: 0.2, Moment.CONNECT: 0.1, Moment.LOAD: 0.64, Moment.DRAIN: 0.06}
FIRST_KILLS = 3
FIRST_S = 0.1
ORDERLY = 0.04
"""Share of the lives that end by themselves, besides the kills."""
LOAD_S = (0.002, 0.2)
LONG = 0.05
LONG_S = (0.2, 1.0)
"""Long enough for housekeeping to progress, in that share of the lives."""
DRAIN_S = 0.02


class Found(Exception):
    """The run has ended, because a broker cannot go on."""


class Torture:
    """One run, in `folder`, which is kept for inspection."""

    ends_in_turn = False
    """True if several nodes end one after the other. Will messages of the first may then reach
    subscribers of the last as these are disconnected, and come again."""

    def __init__(
        self,
        folder: Path,
        *,
        kills: int,
        seed: int,
        store: str = "rocks",
        patience_s: float = HANG_S,
        refuses: bool = False,
        on_kill: Callable[[Verdict], None] = lambda verdict: None,
    ) -> None:
        self.verdict = Verdict(seed, store)
        self._folder = folder
        self._kills = kills
        self._patience_s = patience_s
        self._quiet_s = min(PATIENCE_S, patience_s)
        self._on_kill = on_kill
        self._random = Random(seed)
        applications = APPLICATIONS if store in APPLYING else ()
        self._ledger = Ledger(logs=store in LOGGING, refuses=refuses, applications=applications)
        self._selector = selectors.DefaultSelector()
        self._reserved = reserve_port()
        self._port: int = self._reserved.getsockname()[1]
        self._players = cast(self._port, self._selector, self._ledger, self._random)
        self._broker: Broker | None = None
        self._is_ending = False

    def run(self) -> Verdict:
        """Until all kills are done and all debts paid, or something is found."""
        began_s = time.monotonic()
        try:
            self._prepare()
            while self.verdict.kills.total() < self._kills and not self._ledger.findings:
                self._live()
            self._settle()
        except Found:
            pass
        finally:
            if self._broker is not None:
                self._broker.kill()
            for player in self._players:
                player.line.hang_up()
            self._reserved.close()
            self._selector.close()
            self.verdict.wall_s = time.monotonic() - began_s
            self._ledger.report(self.verdict)
        return self.verdict

    # --- lives -------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """All sessions and subscriptions, before anything is published."""
        self._be_calm(True)
        for _ in range(min(FIRST_KILLS, self._kills)):
            broker = self._start()
            self._turns_until(broker.started_s + self._random.uniform(0, FIRST_S))
            self._kill(Moment.FIRST)
        self._start()

        def are_ready() -> bool:
            for player in self._players:
                player.start()
            return all(player.is_ready for player in self._players)

        self._turns(are_ready, "not everybody could connect and subscribe")
        self._end()
        self._be_calm(False)

    def _live(self) -> None:
        """One broker from its start to its end."""
        random = self._random
        orderly = random.random() < ORDERLY
        moment = random.choices(list(MOMENTS), list(MOMENTS.values()))[0]
        shortest_s, longest_s = LONG_S if random.random() < LONG else LOAD_S
        load_s = shortest_s * math.exp(random.uniform(0, math.log(longest_s / shortest_s)))
        broker = self._start()
        if orderly:
            self._load(load_s)
            self._end()
            return
        match moment:
            case Moment.START:
                typical_s = statistics.median(self.verdict.restarts_s[-20:])
                self._turns_until(broker.started_s + random.uniform(0, 1.5 * typical_s))
            case Moment.CONNECT:
                self._load(random.uniform(0, LOAD_S[0]))
            case Moment.LOAD:
                self._load(load_s)
            case Moment.DRAIN:
                self._load(load_s)
                self._terminate()
                self._turns_until(time.monotonic() + random.uniform(0, DRAIN_S))
        self._kill(moment)

    def _load(self, seconds: float) -> None:
        """From the moment that a publisher is in."""

        def is_on() -> bool:
            return any(isinstance(p, Publisher) and p.peer.online for p in self._players)

        self._turns(is_on, "no publisher could connect")
        self._turns_until(time.monotonic() + seconds)

    def _settle(self) -> None:
        """Let all players get the messages owed to them, and end the broker; nothing may come
        again."""
        ledger = self._ledger
        self._be_calm(True)
        self._start()
        self._turns_until_quiet()
        ledger.close()
        self._end()
        if ledger.findings:
            return
        repeated_count = len(ledger.repeated)
        self._start()
        self._turns_until_quiet()
        for player in self._players:
            if isinstance(player, Publisher):
                player.publish(1)  # All repeated messages come before it.
        self._turns_until_quiet()
        ledger.close()
        for message in ledger.repeated[repeated_count:]:
            if not (self.ends_in_turn and message.is_will):
                ledger.find(f"{message} came again after an orderly end")
        self._end()

    def _be_calm(self, calm: bool) -> None:
        for player in self._players:
            player.calm = calm

    # --- the broker --------------------------------------------------------------------------

    @property
    def _current(self) -> Broker:
        assert self._broker is not None
        return self._broker

    def _start(self) -> Broker:
        for player in self._players:
            player.night()
        self._is_ending = False
        store = self.verdict.store
        chosen = settings(self._random, logs=store in LOGGING, applications=store in APPLYING)
        start = Start(self._port, self._folder, store, chosen)
        self._broker = Broker(start)
        return self._broker

    def _kill(self, moment: Moment) -> None:
        if self._reap(self._current.kill()):
            self.verdict.kills[moment] += 1
            self._ledger.note(f"after {self.verdict.kills.total()} kills")
            self._ledger.report(self.verdict)
            self._on_kill(self.verdict)

    def _terminate(self) -> None:
        self._turns(lambda: self._current.serving_s is not None, "it does not serve")
        self._is_ending = True
        self._current.terminate()

    def _end(self) -> None:
        """The orderly end."""
        self._terminate()
        self._turns(lambda: not self._current.is_alive, "it does not drain")
        self._reap(self._current.wait())
        self.verdict.orderly_ends += 1

    def _reap(self, code: int) -> bool:
        """The process has ended. Return True if it was killed."""
        broker, self._broker = self._current, None
        if broker.serving_s is not None:
            self.verdict.restarts_s.append(broker.serving_s - broker.started_s)
        killed = code == -SIGKILL
        if not (killed or (self._is_ending and code == 0)):
            self._fail(f"the broker ended by itself, with code {code}")
        for player in list(self._players):
            if player.line.wire is not None:
                player.line.wire.read_rest()
            self._part(player, killed=killed)
        if killed:
            self._ledger.killed()
        return killed

    def _fail(self, finding: str) -> NoReturn:
        text = (self._folder / "broker.log").read_text()
        self._ledger.find(f"{finding}; its log ends with\n{text[-4_000:]}" if text else finding)
        raise Found

    # --- turns -------------------------------------------------------------------------------

    def _turns_until(self, end_s: float) -> None:
        while (left_s := end_s - time.monotonic()) > 0:
            self._turn(min(TURN_S, left_s))

    def _turns(self, done: Callable[[], bool], failure: str) -> None:
        """Run turns until `done`. Fails if the broker takes too long, or ends."""
        end_s = time.monotonic() + self._patience_s
        while not done():
            if time.monotonic() > end_s:
                self._fail(f"{failure} within {self._patience_s:.0f} s")
            if not self._is_ending and not self._current.is_alive:
                self._reap(self._current.wait())
            self._turn(TURN_S)

    def _turns_until_quiet(self) -> None:
        """Until all is done, or nothing has come for long."""
        ledger = self._ledger
        progress, end_s = -1, 0.0
        while not (ledger.is_settled and all(player.is_idle for player in self._players)):
            if progress != ledger.progress:
                progress = ledger.progress
                end_s = time.monotonic() + (IN_A_MOMENT_S if ledger.findings else self._quiet_s)
            elif time.monotonic() > end_s:
                waiting = [p.peer.client_id for p in self._players if not p.is_idle]
                ledger.find(f"nothing comes any more; not done: {', '.join(waiting) or 'nobody'}")
                return
            self._turn(TURN_S)

    def _turn(self, timeout_s: float) -> None:
        for key, _ in self._selector.select(timeout_s):
            key.data.read()
        for player in list(self._players):
            wire = player.line.wire
            if wire is not None and wire.is_closed and player.peer.wire is wire:
                self._on_end_of(player)
                continue
            if wire is not None:
                self._drop_farewell(wire)
            self._judge(player, player.act)
            if player.line.wire is not None:
                player.line.wire.flush()

    # --- players -----------------------------------------------------------------------------

    def _on_end_of(self, player: Player) -> None:
        """The broker has ended a connection: only an ending broker does that."""
        self._part(player, killed=False)
        if not self._is_ending:
            if self._current.has_ended(IN_A_MOMENT_S):
                self._reap(self._current.wait())
            self._fail(f"{player.peer.client_id}: the broker ended its connection")

    def _part(self, player: Player, *, killed: bool) -> None:
        """A connection has ended on the broker's side; all bytes that it had sent have arrived."""
        wire = player.line.wire
        if wire is not None:
            self._drop_farewell(wire)
            self._judge(player, partial(player.peer.receive, len(wire.inbox)))
        if isinstance(player, Mortal):
            player.dies()
        if killed:
            player.peer.lost()
        else:
            player.peer.close()
        player.line.hang_up()

    def _drop_farewell(self, wire: TcpWire) -> None:
        """Drop the DISCONNECT of an ending broker, because a peer takes none."""
        if self._is_ending:
            wire.inbox[:] = [each for each in wire.inbox if not isinstance(each, Disconnect)]

    def _judge(self, player: Player, act: Callable[[], object]) -> None:
        """Run an action of a peer, which asserts the rules for its server; on a failure the peer is
        out."""
        try:
            act()
        except AssertionError as error:
            self._ledger.find(f"{player.peer.client_id}: {error}")
            self._ledger.forget(player.peer)
            self._players.remove(player)
            player.line.hang_up()
