"""A flooding client that also sends PINGREQ, as the standard asks of a client that keeps alive."""

from collections import deque
from typing import Final, final

from flowguard.codec import PINGREQ_FRAME, Packet, Pingresp
from loadgen.storm.client import Client, Part, Stage
from loadgen.storm.loop import ClientLoop
from loadgen.storm.tally import LatencyHistogram

PING_S: Final = 1.0


@final
class PingTally:
    """PINGREQs of many clients, and how long their answers took."""

    def __init__(self) -> None:
        self.sent = 0
        self.answer = LatencyHistogram()
        self.open: dict[Client, deque[float]] = {}
        """The instants of those that have no answer yet."""

    def slowest_s(self, now_s: float) -> float:
        """The longest wait, of the answered and of those that still wait."""
        return max([self.answer.max_s, *(now_s - sent[0] for sent in self.open.values() if sent)])

    @property
    def unanswered(self) -> int:
        return sum(map(len, self.open.values()))


@final
class PingingPart:
    """Another part of a client, and a PINGREQ every second until `stop_s`."""

    def __init__(self, part: Part, client: Client, loop: ClientLoop, tally: PingTally) -> None:
        self._part = part
        self._client = client
        self._loop = loop
        self._tally = tally
        self._sent = tally.open[client] = deque()

    def connected(self, now_s: float) -> None:
        self._part.connected(now_s)

    def start(self, now_s: float, stop_s: float) -> None:
        """Send the first one now."""
        if now_s >= stop_s or self._client.stage is not Stage.IN:
            return
        assert self._client.wire is not None
        self._client.wire.write(PINGREQ_FRAME)
        self._sent.append(now_s)
        self._tally.sent += 1
        self._loop.call_at(now_s + PING_S, lambda now_s: self.start(now_s, stop_s))

    def receive(self, packet: Packet, now_s: float) -> None:
        if packet.__class__ is Pingresp and self._sent:
            self._tally.answer.record(now_s - self._sent.popleft())
        else:
            self._part.receive(packet, now_s)
