"""`python -m tests.torture.upstream`: a proxy's upstream, killed and started again under load.

Pairs of clients with sessions that last are connected through `flowguard proxy` to `flowguard
serve`, which is killed with SIGKILL and started again, over and over. Between proxy and upstream
`tests.torture.tap` counts CONNECTs in process. What has to hold:

1. A message whose PUBLISH was acknowledged reaches its subscriber.
2. After every kill every client is back.
3. CONNECTs in process at the upstream are never more than the gate allows.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import trio
import typer

from benchmarks.brokers import free_port
from flowguard.cli.descriptors import use_all_descriptors
from flowguard.codec import Packet, Puback, Suback, Subscribe, encode, puback_frame
from flowguard.types import MQTT_5, Publish, ReasonCode, SubscriptionOptions
from loadgen.storm import Crowd, CrowdPlan, RetryMode, RetryPolicy, Target
from loadgen.storm.client import Client, Stage
from tests.broker_adapter.upstream import proxy_process
from tests.interop.broker import address_in, start
from tests.support.reaper import reap_at_the_end

GATE = 20
LOAD_S = 2.0
BACK_S = 180.0
"""Only against hanging."""
RATE_PER_S = 0.5


@dataclass
class Findings:
    """The result of the run."""

    kills: int = 0
    acknowledged: int = 0
    lost: int = 0
    not_back: int = 0
    peak: int = 0
    connects: int = 0
    back_s: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        slowest_s = max(self.back_s, default=0.0)
        return (
            f"{self.kills} kills: {self.acknowledged:,} messages acknowledged, {self.lost} of them "
            f"lost; {self.not_back} clients not back, the slowest return of all took "
            f"{slowest_s:.1f} s; at most {self.peak} of {GATE} CONNECTs in process at the "
            f"upstream, {self.connects:,} in all"
        )


class Sender:
    """Publishes one message after the other, as soon as its receiver has subscribed, and notes
    which were acknowledged."""

    def __init__(self, crowd: Crowd, client: Client, receiver: "Receiver", topic: str) -> None:
        self._crowd = crowd
        self._client = client
        self._receiver = receiver
        self._topic = topic
        self._number = 0
        self._life = 0
        self.is_over = False
        """Whether it is to publish nothing more."""
        self.acknowledged: set[int] = set()

    def connected(self, now_s: float) -> None:
        self._life += 1
        life = self._life
        self._crowd.loop.call_at(now_s + 1 / RATE_PER_S, lambda now_s: self._send(life, now_s))

    def _send(self, life: int, now_s: float) -> None:
        if self.is_over or life != self._life or self._client.stage is not Stage.IN:
            return
        if self._receiver.ready:
            assert self._client.wire is not None
            self._number += 1
            identifier = self._number % 60_000 + 1
            packet = Publish(self._topic, b"%d" % self._number, 1, packet_id=identifier)
            self._client.wire.write(encode(packet, MQTT_5))
        self._crowd.loop.call_at(now_s + 1 / RATE_PER_S, lambda now_s: self._send(life, now_s))

    def receive(self, packet: Packet, now_s: float) -> None:
        if isinstance(packet, Puback) and packet.reason_code < ReasonCode.UNSPECIFIED_ERROR:
            self.acknowledged.add(packet.packet_id - 1)


class Receiver:
    """Subscribes whenever it is in, and notes what came."""

    def __init__(self, client: Client, topic: str) -> None:
        self._client = client
        self._topic = topic
        self.received: set[int] = set()
        self.ready = False

    def connected(self, now_s: float) -> None:
        assert self._client.wire is not None
        packet = Subscribe(1, ((self._topic, SubscriptionOptions(1)),))
        self._client.wire.write(encode(packet, MQTT_5))

    def receive(self, packet: Packet, now_s: float) -> None:
        if isinstance(packet, Publish):
            self.received.add(int(packet.payload))
            assert self._client.wire is not None
            self._client.wire.write(puback_frame(packet.packet_id))
        elif isinstance(packet, Suback):
            self.ready = True


class Upstream:
    """`flowguard serve` on a port and a directory of its own."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        words = ["--listen", f"127.0.0.1:{self.port}", "--data", str(self._folder / "data")]
        with (self._folder / "upstream.log").open("a") as log:
            self._process = start("serve", *words, stderr=log)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith("listening on "), (self._folder / "upstream.log").read_text()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


@contextmanager
def tapped(upstream: int, findings: Findings) -> Iterator[int]:
    """A tap before that port: its own port; its counts at the end."""
    command = [sys.executable, "-m", "tests.torture.tap", str(upstream)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield address_in(process.stdout.readline())[1]
            process.send_signal(signal.SIGTERM)
            counts = json.loads(process.stdout.readline())
            findings.peak, findings.connects = counts["peak"], counts["connects"]
        finally:
            process.kill()


async def torture(upstream: Upstream, port: int, clients: int, findings: Findings) -> None:
    """Load, kill, wait for all clients, until `findings` needs no more."""
    retry = RetryPolicy(RetryMode.BACKOFF, 0.2, 2.0)
    plan = CrowdPlan(clients, retry, timeout_s=BACK_S, seconds=BACK_S, returns=True, durable=True)
    crowd = Crowd(Target.resolve("127.0.0.1", port), plan, trio.current_time)
    loop, tally = crowd.loop, crowd.tally
    senders, receivers = [], []
    for number in range(0, clients, 2):
        topic = f"{crowd.name}/{number}"
        first, second = crowd.clients[number : number + 2]
        receiver = second.part = Receiver(second, topic)
        receivers.append(receiver)
        sender = first.part = Sender(crowd, first, receiver, topic)
        senders.append(sender)

    async def everybody_is_in() -> None:
        until_s = loop.clock() + BACK_S
        await loop.run(lambda now_s: now_s >= until_s or tally.connected == clients)
        findings.not_back = max(findings.not_back, clients - tally.connected)

    async def load(seconds: float) -> None:
        until_s = loop.clock() + seconds
        await loop.run(lambda now_s: now_s >= until_s)

    def is_settled() -> bool:
        return all(s.acknowledged <= r.received for s, r in zip(senders, receivers, strict=True))

    try:
        await crowd.connect()
        await everybody_is_in()
        typer.echo(f"{tally.connected:,} of {clients:,} clients are in", err=True)
        until_s = loop.clock() + BACK_S
        await loop.run(lambda now_s: now_s >= until_s or all(r.ready for r in receivers))
        for _ in range(findings.kills):
            await load(LOAD_S)
            upstream.kill()
            began_s = loop.clock()
            await loop.run(lambda now_s: tally.connected < clients)
            await load(LOAD_S / 4)  # They wait at the proxy.
            await trio.to_thread.run_sync(upstream.start)
            await everybody_is_in()
            findings.back_s.append(loop.clock() - began_s)
            number, back_s = len(findings.back_s), findings.back_s[-1]
            typer.echo(f"kill {number}: everybody back after {back_s:.1f} s", err=True)
        for sender in senders:
            sender.is_over = True  # Else there is always something on its way.
        until_s = loop.clock() + BACK_S
        await loop.run(lambda now_s: now_s >= until_s or is_settled())
        findings.acknowledged = sum(len(sender.acknowledged) for sender in senders)
        pairs = zip(senders, receivers, strict=True)
        findings.lost = sum(len(s.acknowledged - r.received) for s, r in pairs)
        await crowd.leave()
    finally:
        loop.close_all()


def run(folder: Path, clients: int, kills: int) -> Findings:
    """All of it, in `folder`."""
    findings = Findings(kills)
    with ExitStack() as stack:
        upstream = Upstream(folder)
        stack.callback(upstream.kill)
        upstream.start()
        tap = stack.enter_context(tapped(upstream.port, findings))
        settings = {"connects_in_process_max": GATE, "connect_patience_s": 60}
        _, port = stack.enter_context(proxy_process(folder, tap, **settings))
        trio.run(torture, upstream, port, clients, findings)
    return findings


def main(
    clients: Annotated[int, typer.Option(min=2)] = 2_000,
    kills: Annotated[int, typer.Option(min=1)] = 20,
) -> None:
    """Exit code 1: something was lost, somebody is not back, or the gate was passed."""
    reap_at_the_end()
    use_all_descriptors()
    with TemporaryDirectory(prefix="torture-") as folder:
        findings = run(Path(folder), clients - clients % 2, kills)
    typer.echo(str(findings))
    raise typer.Exit(1 if findings.lost or findings.not_back or findings.peak > GATE else 0)


if __name__ == "__main__":
    typer.run(main)
