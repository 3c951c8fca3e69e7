"""mosquitto_pub and mosquitto_sub: a subscriber is a process, and so is every publishing."""

import itertools
import json
import queue
import shutil
import signal
import subprocess
import threading
from typing import Any

import pytest

from tests.interop.broker import PATIENCE_S
from tests.interop.peer import Connection, Message, Opening, Peer

PROTOCOLS = {"3.1": "mqttv31", "3.1.1": "mqttv311", "5.0": "mqttv5"}


def program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is missing: make test installs it (apt-get install mosquitto-clients)")
    return path


def property_words(packet: str, properties: dict[str, Any]) -> list[str]:
    words = []
    for name, value in properties.items():
        option = ["-D", packet, name.replace("_", "-")]
        if name == "user_property":
            for pair in value:
                words += [*option, *pair]
        else:
            words += [*option, value.decode() if isinstance(value, bytes) else str(value)]
    return words


def read_message(line: str) -> Message:
    """A line of `-F %j`; user properties are an object whose keys repeat."""
    got = json.loads(line, object_pairs_hook=list)
    fields = dict(got)
    properties = {}
    for name, value in fields.get("properties", ()):
        if name == "user-properties":
            properties["user_property"] = [tuple(pair) for pair in value]
        elif name == "correlation-data":
            properties["correlation_data"] = value.encode()
        elif name == "subscription-identifier":
            properties["subscription_identifier"] = value if isinstance(value, list) else [value]
        else:
            properties[name.replace("-", "_")] = value
    return Message(
        fields["topic"],
        fields["payload"].encode(),
        fields["qos"],
        bool(fields["retain"]),
        properties,
    )


class MosquittoConnection(Connection):
    """A mosquitto_sub, if there is something to subscribe to."""

    def __init__(self, peer: "Mosquitto", opening: Opening) -> None:
        super().__init__()
        self._peer = peer
        self._process: subprocess.Popen[str] | None = None
        self._granted: queue.Queue[str] = queue.Queue()
        if not opening.subscriptions:
            return
        # Into a pipe it would write nothing before it ends.
        words = [
            "stdbuf",
            "-oL",
            *peer.words("mosquitto_sub"),
            "-d",
            "-F",
            "%j",
            "-k",
            str(opening.keep_alive_s),
        ]
        if opening.client_id:
            words += ["-i", opening.client_id]
        qos = {each.qos for each in opening.subscriptions}
        assert len(qos) == 1, "mosquitto_sub has one QoS for all"
        words += ["-q", str(qos.pop())]
        for each in opening.subscriptions:
            words += ["-t", each.filter]
            if each.retain_as_published:
                words.append("--retain-as-published")
            if each.identifier:
                words += ["-D", "subscribe", "subscription-identifier", str(each.identifier)]
        start_time = opening.subscriptions[0].start_time
        if start_time is not None:
            words += property_words(
                "subscribe", {"user_property": [("start-time", str(start_time))]}
            )
        if not opening.clean:
            words.append("-c")
        if peer.is_5:
            words += ["-x", str(opening.expiry_s)]
        if opening.will is not None:
            words += self._will_words(opening.will)
        self._process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        line = self._granted.get(timeout=PATIENCE_S)
        granted = [int(code) for code in line.rpartition(": ")[2].split(", ")]
        assert granted == [each.qos for each in opening.subscriptions], line

    def _will_words(self, will: Message) -> list[str]:
        words = ["--will-topic", will.topic, "--will-qos", str(will.qos)]
        if will.payload:
            words += ["--will-payload", will.payload.decode()]
        if will.retain:
            words.append("--will-retain")
        return words + property_words("will", will.properties)

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self.inbox.put(read_message(line))
            elif line.startswith("Subscribed"):
                self._granted.put(line)
            elif line.startswith("Received DISCONNECT"):
                self.ended.put(int(line.rpartition("(")[2].rstrip(")\n")))
        self._granted.put("the process has ended: 255")
        self.ended.put(None)

    def publish(self, *messages: Message) -> None:
        """One process for messages that differ in their payload only; with QoS 0 one for each.

        With QoS 0, mosquitto_pub 2.0.11 that reads lines now and then never ends: of 2,000 that
        published 60 lines to Mosquitto itself, one had sent all and waited for ever.
        """
        for (*_, qos), group in itertools.groupby(
            messages, lambda each: (each.topic, each.retain, each.properties, each.qos)
        ):
            if qos:
                self._publish(list(group))
            else:
                for each in group:
                    self._publish([each])

    def _publish(self, messages: list[Message]) -> None:
        first = messages[0]
        words = [*self._peer.words("mosquitto_pub"), "-t", first.topic, "-q", str(first.qos)]
        if first.retain:
            words.append("-r")
        words += property_words("publish", first.properties)
        if len(messages) > 1:
            words.append("-l")
        else:
            words.append("-s" if first.payload else "-n")
        payloads = b"\n".join(each.payload for each in messages)
        done = subprocess.run(
            words,
            input=payloads,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout

    def disconnect(self) -> None:
        self._end(signal.SIGTERM)

    def cut(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(number)
        self._process.wait(PATIENCE_S)
        self._thread.join(PATIENCE_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None


class Mosquitto(Peer):
    resumes_silently = False

    def require(self) -> None:
        program("mosquitto_pub")
        program("mosquitto_sub")

    @property
    def notices_the_end(self) -> bool:
        """Without DISCONNECT it tries to come back for ever, without a word."""
        return self.is_5

    @property
    def leaves_with_will(self) -> bool:
        """A mosquitto_sub that is interrupted says DISCONNECT 0x04."""
        return self.is_5

    def keeps_order(self, qos: int) -> bool:
        return qos > 0

    def words(self, name: str) -> list[str]:
        """The first words of a command."""
        version = PROTOCOLS[self.version]
        return [program(name), "-h", "127.0.0.1", "-p", str(self.port), "-V", version]

    def connect(self, opening: Opening) -> Connection:
        return MosquittoConnection(self, opening)
