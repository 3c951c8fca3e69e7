"""Three nodes of one broker over Redis, of which one after the other has a fault.

`python -m tests.torture.cluster --faults 30 --seed 1`: players as in `tests.torture.run`. Each
connects to any node, and some connect to another one while they are connected. Faults overlap.
"""

import json
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from selectors import BaseSelector
from typing import Annotated, Any, NoReturn

import typer

from flowguard.cluster import Members
from flowguard.codec.packets import Disconnect
from flowguard.types import MQTT_5, MQTT_311
from tests.support.reaper import reap_at_the_end
from tests.support.redis_server import ALWAYS, RedisServer, redis_server
from tests.torture.ledger import Account, Ledger
from tests.torture.nodes import SHARDS, Node, has_ended
from tests.torture.players import Mortal, Player, Publisher, Reader, Subscriber
from tests.torture.run import Found, Torture
from tests.torture.wire import HOST, Line, TcpWire

NODES = 3
NO_STORE = 73
"""Exit code of a node that starts while Redis is away."""
STOP_S = 8.0
"""Longer than a lease."""
REDIS_S = 5.0
AWAY_S = (0.0, 8.0)
"""Time between the end of a node and its next start."""
CALM_S = (0.5, 7.0)
"""Time between the beginnings of two faults."""
PATIENCE_S = 90.0
CONNACK_S = 4.0
"""Time after which a client tries another node."""
FAULTS = ("kill", "stop", "term", "worker", "redis")


class ClusterLine(Line):
    """A client's way to any node."""

    def __init__(self, ports: list[int], selector: BaseSelector, random: Random) -> None:
        super().__init__(0, selector)
        self._ports = ports
        self._random = random
        self.dialled_s = 0.0
        self.port = 0
        self.former: list[TcpWire] = []
        """Connections that the client has left open."""

    def dial(self) -> bool:
        if time.monotonic() < self.dialled_s + 0.1:
            return False
        self.hang_up()
        self.dialled_s = time.monotonic()
        self.port = self._random.choice(self._ports)
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.settimeout(0.3)
        try:
            sock.connect((HOST, self.port))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            sock.close()
            return False
        sock.setblocking(False)
        self._dialled = sock
        return True

    def leave_open(self) -> None:
        """The next connection begins while this one is open."""
        if self.wire is not None:
            self.wire.flush()
            self.former.append(self.wire)
            self.wire = None
        while len(self.former) > 3:
            self.former.pop(0).close()

    def hang_up_all(self) -> None:
        self.hang_up()
        for wire in self.former:
            wire.close()
        self.former.clear()


class SlowPublisher(Publisher):
    """As many messages as three nodes and Redis take on two busy cores."""

    share = 0.3

    def listen(self) -> None:
        calm = self.calm
        self.calm = calm or self.random.random() > self.share
        try:
            super().listen()
        finally:
            self.calm = calm


def cast(ports: list[int], selector: BaseSelector, ledger: Ledger, random: Random) -> list[Player]:
    members = Members("worker-0", 1, [f"worker-{each}" for each in range(SHARDS)])

    def named(prefix: str, shard: int, version: int = 5) -> tuple[Any, ...]:
        client_id = next(
            name
            for name in (f"{prefix}-{number}v{version}" for number in range(10_000))
            if members.owner_of(name) == f"worker-{shard % SHARDS}"
        )
        line = ClusterLine(ports, selector, Random(random.random()))
        kind = MQTT_5 if version == 5 else MQTT_311
        return client_id, kind, line, ledger, Random(random.random())

    group = Account("group g", shared=True)
    topics = ["t/0", "t/1", "t/2"]
    every = {"t/#": 2, "w/#": 2}
    players: list[Player] = []
    for shard in range(SHARDS):
        players += [
            SlowPublisher(*named("p", shard, 5 - shard % 2), topics=topics),
            Subscriber(*named("s", shard, 5 - shard % 2), filters=every),
            Subscriber(*named("lazy", shard), filters=every, laziness=0.5, receive_maximum=20),
            Mortal(*named("mortal", shard), topic=f"w/{shard}", qos=1 + shard % 2),
            Subscriber(*named("member", shard), filters={"$share/g/t/#": 2}, account=group),
        ]
    players += [
        SlowPublisher(*named("keeper", 1), topics=["r/0", "r/1", "r/2"], retain=True),
        Subscriber(*named("one", 0), filters={"t/#": 1, "w/#": 1}),
        Subscriber(*named("sleeper", 1), filters=every, sleeps=True),
        Subscriber(*named("sleeper", 2, 4), filters=every, sleeps=True),
        Reader(*named("reader", 0), filter="r/#"),
        Reader(*named("reader", 2), filter="r/#"),
    ]
    for player in players:
        if isinstance(player, Reader):
            player.repeats = True
    ledger.ignore_order_of_groups()
    return players


class ClusterTorture(Torture):
    def __init__(self, folder: Path, redis: RedisServer, *, faults: int, seed: int) -> None:
        super().__init__(folder, kills=faults, seed=seed, refuses=True, patience_s=PATIENCE_S)
        self.verdict.store = "redis"
        self._ledger = Ledger(refuses=True)
        self._redis = redis
        taken: set[int] = set()
        self._nodes = [Node(folder, redis, f"n{index}", taken) for index in range(NODES)]
        ports = [node.port for node in self._nodes]
        self._players = cast(ports, self._selector, self._ledger, self._random)
        self._due: list[tuple[float, Callable[[], None]]] = []
        self._faults_left = faults
        self.faults: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()
        self._redis_paused = False
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
        self._redis.resume()
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

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        self._due.append((time.monotonic() + seconds, act))

    def _fault(self) -> None:
        random = self._random
        name = random.choice(FAULTS)
        serving = [node for node in self._nodes if node.serves]
        if name == "redis":
            if self._redis_paused:
                return
            self._redis_paused = True
            self._redis.pause()
            self._after(REDIS_S, self._resume_redis)
            self._tell("redis paused")
        else:
            if len(serving) < 2:
                return
            node = random.choice(serving)
            if name == "kill":
                node.kill()
                self._tell(f"killed {node.name}")
                self._after(random.uniform(*AWAY_S), partial(self._restart, node))
            elif name == "stop":
                node.stop()
                self._tell(f"stopped {node.name}")
                self._after(STOP_S, partial(self._resume, node))
            elif name == "term":
                node.terminate()
                self._tell(f"terminated {node.name}")
            elif not node.kill_worker(random):
                return
            else:
                self._tell(f"killed a worker of {node.name}")
        self.faults[name] += 1
        self._faults_left -= 1
        self._is_found()
        self._ledger.note(f"after {self.faults.total()} faults")
        for player in self._players:
            player.night()

    def _restart(self, node: Node) -> None:
        self._tell(f"starts {node.name}")
        node.start()

    def _resume(self, node: Node) -> None:
        self._tell(f"resumes {node.name}")
        node.resume()

    def _resume_redis(self) -> None:
        self._redis.resume()
        self._redis_paused = False
        self._tell("redis resumes")

    def _heal(self) -> None:
        self._tell("healing")
        self._turns(lambda: not self._due and all(n.serves for n in self._nodes), "no rest")
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
        for item in [each for each in self._due if each[0] <= now_s]:
            self._due.remove(item)
            item[1]()
        for node in self._nodes:
            if node.has_to_be_reaped:
                is_due = node.is_ending
                code = node.reap()
                self.ends[f"code {code}"] += 1
                if code == NO_STORE and self._redis_paused:
                    self._tell(f"{node.name} has not started: no Redis")
                    self._after(1.0, partial(self._restart, node))
                    continue
                if not is_due or code:
                    self._ledger.find(f"{node.name} has ended with code {code}")
                    raise Found
                if self._faults_left or self._due or not self._is_over:
                    self._tell(f"{node.name} has ended")
                    self._after(self._random.uniform(*AWAY_S), partial(self._restart, node))
        for player in self._players:
            self._grow_impatient(player, now_s)
        time.sleep(0.003)
        super()._turn(timeout_s)

    def _grow_impatient(self, player: Player, now_s: float) -> None:
        line: Any = player.line
        if player.peer.wire is None:
            return
        stopped = any(n.is_stopped and n.port == line.port for n in self._nodes)
        if not player.peer.online:
            if (
                now_s > line.dialled_s + CONNACK_S
                and not self._redis_paused
                and not self._is_first(player)
            ):
                self._part(player, killed=True)
        elif (stopped and player.random.random() < 0.005) or (
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


def main(
    faults: Annotated[int, typer.Option(min=0, help="Number of faults.")] = 30,
    seed: Annotated[int, typer.Option(help="Seed of the players and moments.")] = 1,
) -> None:
    """Exit code 1: something was found, and the directory is kept."""
    kept_in = tempfile.gettempdir()
    reap_at_the_end()
    folder = Path(tempfile.mkdtemp(prefix="torture-cluster-", dir=kept_in))
    with redis_server(folder / "redis", ALWAYS) as redis:
        torture = ClusterTorture(folder, redis, faults=faults, seed=seed)
        verdict = torture.run()
    print(verdict, dict(torture.ends))
    shown = 0
    for finding in verdict.findings:
        if "came before" not in finding or shown < 12:
            print(finding)
            shown += "came before" in finding
    print(f"directory: {folder}", file=sys.stderr)
    raise typer.Exit(bool(verdict.findings))


if __name__ == "__main__":
    typer.run(main)
