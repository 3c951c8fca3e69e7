"""Three nodes of one broker over Redis, of which one after the other has a fault.

`python -m tests.torture.cluster --faults 30 --seed 1`: players as in `tests.torture.run`. Each
connects to any node, and some connect to another one while they are connected. Faults overlap.
`--fault NAME` chooses faults (`tests.torture.cluster_faults`); those of a network need namespaces.
"""

import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from signal import SIGTERM
from typing import Annotated, Any, NoReturn

import typer

from flowguard.codec.packets import Disconnect
from flowguard.types import Properties
from tests.support.reaper import reap_at_the_end
from tests.torture.cluster_cast import cast
from tests.torture.cluster_faults import FAULTS, LEVEL_OF, Nemesis, kind_of
from tests.torture.cluster_places import NODES, Place, mount, place_of
from tests.torture.ledger import Ledger
from tests.torture.network import enter
from tests.torture.nodes import SHARDS, Node, Setup, has_ended
from tests.torture.players import Mortal, Player, Publisher, Reader
from tests.torture.run import Found, Torture
from tests.torture.wire import TcpWire

NO_STORE = 73
"""Exit code of a node that starts while Redis is away."""
EARLY = -SIGTERM
"""Exit code of a node that is told to end before it can handle a signal."""
CALM_S = (0.5, 7.0)
"""Time between the beginnings of two faults."""
PATIENCE_S = 90.0
CONNACK_S = 4.0
"""Time after which a client tries another node."""
ORDINARY = ("kill", "stop", "term", "worker", "redis")
EXPIRY = Properties(message_expiry_interval=3_600)
"""Less than the difference of two clocks."""


class ClusterTorture(Torture):
    def __init__(
        self,
        folder: Path,
        place: Place,
        *,
        names: list[str],
        faults: int,
        seed: int,
        level: str = "fsync",
        layout: str = "stream",
        qos: int = 2,
    ) -> None:
        """`names` are those of the faults; `qos` is that of subscriptions."""
        super().__init__(folder, kills=faults, seed=seed, refuses=True, patience_s=PATIENCE_S)
        self.verdict.store = f"redis {layout} {level}"
        self._ledger = Ledger(refuses=True)
        if "clock" in names:
            self._ledger.properties = EXPIRY
        redis = {"layout": layout, "replicas": 1}
        settings: dict[str, dict[str, Any]] = {"redis": redis, "store": {"durability": level}}
        if layout == "zset":
            settings["session"] = {"queue_messages_max": 65_535}
        if place.network is not None:
            settings["network"] = {"allow_plaintext": True, "allow_anonymous": True}
            settings["cluster"] = {"allow_plaintext": True}
        taken: set[int] = set()
        nodes = []
        for index in range(NODES):
            setup = Setup(place.url, settings=settings, has_clock="clock" in names)
            if place.network is not None:
                host, program = place.network.host(index), place.network.program(index)
                setup = replace(setup, host=host, program=program)
            nodes.append(Node(folder, setup, f"n{index}", taken))
            if "disk" in names:
                data = folder / f"n{index}" / "data"
                data.mkdir()
                mount(data)
        self._nodes = nodes
        self._nemesis = Nemesis(place, nodes, self._random)
        self._nemesis.tell = self._tell
        addresses = [node.for_clients for node in nodes]
        self._players = cast(addresses, self._selector, self._ledger, self._random, qos=qos)
        self._names = names
        self._faults_left = faults
        self.faults: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()
        self._is_over = False
        self._asked_s = 0.0
        self.began_s = time.monotonic()

    def _tell(self, text: str) -> None:
        print(
            f"{time.strftime('%H:%M:%S')} {time.monotonic() - self.began_s:6.1f} {text}", flush=True
        )

    def run(self) -> Any:
        self.began_s = time.monotonic()
        try:
            for node in self._nodes:
                node.start()
            self._be_calm(True)
            self._turns(self._all_whole, "not all nodes are ready at first")
            self._tell("whole")
            self._turns(self._are_ready, "not everybody could connect and subscribe")
            self._be_calm(False)
            self._tell("all in")
            while self._faults_left and not self._is_found():
                self._turns_until(time.monotonic() + self._random.uniform(*CALM_S))
                self._fault()
            self._heal()
        except Found:
            pass
        finally:
            self._finish()
        return self.verdict

    def _finish(self) -> None:
        self._nemesis.finish()
        for node in self._nodes:
            if node.is_alive:
                node.resume()
                node.kill()
        for player in self._players:
            player.line.hang_up_all()  # type: ignore[attr-defined]
        self._reserved.close()
        self._selector.close()
        self.verdict.wall_s = time.monotonic() - self.began_s
        self.verdict.faults = self.faults
        self._ledger.report(self.verdict)

    def _is_found(self) -> bool:
        """Tell about messages out of order when they are seen first."""
        found = self._ledger.findings
        if found:
            self._tell(f"FOUND {found[0]}")
            for account in set(self._ledger.accounts()):
                if account.overtaken:
                    late = ", ".join(map(str, account.overtaken.values()))
                    self._tell(f"{account.name} does not have {late}")
        return bool(found)

    def _are_ready(self) -> bool:
        for player in self._players:
            player.start()
        return all(player.is_ready for player in self._players)

    def _all_whole(self) -> bool:
        now_s = time.monotonic()
        if now_s < self._asked_s + 0.5:
            return False
        self._asked_s = now_s
        return all(node.is_whole for node in self._nodes)

    # --- faults ----------------------------------------------------------------------------------

    def _fault(self) -> None:
        name = self._random.choice(self._names)
        if not self._nemesis.begin(name):
            return
        self.faults[name] += 1
        self._faults_left -= 1
        self._is_found()
        self._ledger.note(f"after {self.faults.total()} faults")
        for player in self._players:
            player.night()

    def _heal(self) -> None:
        self._tell("healing")
        due = self._nemesis.due
        self._turns(lambda: not due and all(n.serves for n in self._nodes), "no rest")
        began_s = time.monotonic()
        self._turns(self._all_whole, "not all nodes are ready after healing")
        self._tell(f"whole after {time.monotonic() - began_s:.1f} s")
        self._be_calm(True)
        self._turns_until_quiet()
        self._ledger.close()
        self._is_over = True
        self._tell("quiet")
        repeated = len(self._ledger.repeated)
        for node in self._nodes:
            _, text = node.get("/cluster")
            found = json.loads(text)
            states = [each["state"] for each in found["nodes"].values()]
            shards = sorted(x for each in found["nodes"].values() for x in each["shards"])
            if found["down"] or states != ["alive"] * NODES or shards != list(range(SHARDS)):
                self._ledger.find(f"{node.name}: {text}")
            if "Traceback" in node.log.read_text():
                self._ledger.find(f"{node.name}: a traceback is in {node.log}")
        # An orderly end of one node after the other; nobody may see anything twice at QoS 2.
        for node in self._nodes[:-1]:
            node.terminate()
            self._turns(partial(has_ended, node), f"{node.name} does not end")
            self._turns(lambda: self._nodes[-1].is_whole, "the rest is not whole")
        for player in self._players:
            if isinstance(player, Publisher) and player.peer.online:
                player.publish(1)
        self._turns_until_quiet()
        self._ledger.close()
        self._tell(f"quiet at one node; {len(self._ledger.repeated) - repeated} came again")

    # --- turns -----------------------------------------------------------------------------------

    def _fail(self, finding: str) -> NoReturn:
        self._ledger.find(finding)
        for node in self._nodes:
            self._tell(f"{node.name}: {node.get('/ready')} {node.get('/cluster')}")
        waiting = [p.peer.client_id for p in self._players if not p.is_ready]
        self._tell(f"not ready: {waiting}")
        raise Found

    def _turns(self, done: Callable[[], bool], failure: str) -> None:
        end_s = time.monotonic() + self._patience_s
        while not done():
            if time.monotonic() > end_s:
                self._fail(f"{failure} within {self._patience_s:.0f} s")
            self._turn(0.005)

    def _turn(self, timeout_s: float) -> None:
        now_s = time.monotonic()
        nemesis = self._nemesis
        nemesis.act()
        for finding in nemesis.findings:
            self._ledger.find(finding)
        nemesis.findings.clear()
        for node in self._nodes:
            if node.has_to_be_reaped:
                is_due = node.is_ending
                code = node.reap()
                self.ends[f"code {code}"] += 1
                if code == NO_STORE and nemesis.may_lack_redis(node):
                    self._tell(f"{node.name} has not started: no Redis")
                    nemesis.after(1.0, partial(nemesis.start, node))
                    continue
                if not is_due or code not in (0, EARLY):
                    self._ledger.find(f"{node.name} has ended with code {code}")
                    raise Found
                if self._faults_left or nemesis.due or not self._is_over:
                    self._tell(f"{node.name} has ended")
                    nemesis.start_later(node)
        for player in self._players:
            self._grow_impatient(player, now_s)
        time.sleep(0.003)
        super()._turn(timeout_s)

    def _grow_impatient(self, player: Player, now_s: float) -> None:
        line: Any = player.line
        if player.peer.wire is None:
            return
        if not player.peer.online:
            if (
                now_s > line.dialled_s + CONNACK_S
                and not self._nemesis.redis_is_away
                and not self._is_first(player)
            ):
                self._part(player, killed=True)
        elif self._nemesis.leaves(player, line.address) or (
            not player.calm
            and not isinstance(player, (Mortal, Reader))
            and player.random.random() < 0.002
        ):
            wire: Any = line.wire
            self._drop_farewell(wire)
            self._judge(player, lambda: player.peer.receive(len(wire.inbox)))
            if player.random.random() < 0.6:
                line.leave_open()
                line.dialled_s = 0.0
                if isinstance(player, Mortal):
                    player.dies()
                player.peer.lost()
                self.ends["left open"] += 1
            else:
                self._part(player, killed=True)
                self.ends["cut"] += 1

    def _is_first(self, player: Player) -> bool:
        return player.peer.must_start_clean

    def _on_end_of(self, player: Player) -> None:
        self.ends["closed"] += 1
        self._part(player, killed=True)

    def _drop_farewell(self, wire: TcpWire) -> None:
        for each in wire.inbox:
            if isinstance(each, Disconnect):
                self.ends[f"0x{each.reason_code:02x}"] += 1
        wire.inbox[:] = [each for each in wire.inbox if not isinstance(each, Disconnect)]


def row_of(torture: ClusterTorture) -> str:
    """Return a row of a table: what was done, and what came of it."""
    verdict = torture.verdict
    faults = ", ".join(f"{name} {count}" for name, count in sorted(torture.faults.items()))
    found = len(verdict.findings)
    counts = (verdict.acknowledged, verdict.delivered, verdict.repeated, found)
    return f"| {faults} | {verdict.store} | " + " | ".join(f"{each:,}" for each in counts) + " |"


def main(
    faults: Annotated[int, typer.Option(min=0, help="Number of faults.")] = 30,
    seed: Annotated[int, typer.Option(help="Seed of the players and moments.")] = 1,
    fault: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(FAULTS)}.")] = None,
    layout: Annotated[str, typer.Option(help="Layout of queues: stream or zset.")] = "stream",
    level: Annotated[str, typer.Option(help="Durability, if it is not one that suffices.")] = "",
    qos: Annotated[int, typer.Option(help="QoS of subscriptions.")] = 2,
) -> None:
    """Exit code 1: something was found, and the directory is kept."""
    names = fault or list(ORDINARY)
    kind = kind_of(names)
    if kind == "network":
        enter("tests.torture.cluster", sys.argv[1:])
    level = level or LEVEL_OF[kind]
    kept_in = tempfile.gettempdir()
    reap_at_the_end()
    folder = Path(tempfile.mkdtemp(prefix="torture-cluster-", dir=kept_in))
    with place_of(kind, level, folder / "redis") as place:
        how: Any = {"faults": faults, "seed": seed, "level": level, "layout": layout, "qos": qos}
        torture = ClusterTorture(folder, place, names=names, **how)
        verdict = torture.run()
    print(verdict, dict(torture.ends))
    print(row_of(torture))
    shown = 0
    for finding in verdict.findings:
        if "came before" not in finding or shown < 12:
            print(finding)
            shown += "came before" in finding
    print(f"directory: {folder}", file=sys.stderr)
    raise typer.Exit(bool(verdict.findings))


if __name__ == "__main__":
    typer.run(main)
