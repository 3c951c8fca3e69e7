"""Real clients of brokers on data directories that `flowguard store workers` makes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from flowguard.codec.packets import (
    Packet,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Will,
)
from flowguard.types import Properties, Publish, SubscriptionOptions
from tests.flowguard.cli.http_port import run
from tests.flowguard.workers.clients import Client, tcp
from tests.interop.broker import Broker, running_broker

pytestmark = pytest.mark.slow
KEPT = Properties(session_expiry_interval=1_000)
P = TypeVar("P", bound=Packet)


@contextmanager
def broker_of(folder: Path, count: int) -> Iterator[Broker]:
    with running_broker(folder, "--workers", str(count), "--http", "none") as broker:
        yield broker


def move(folder: Path, count: int) -> Path:
    """Return a folder whose data directory has the sessions of `count` workers."""
    new = folder.with_name(f"{folder.name}-{count}")
    new.mkdir()
    words = ("store", "workers", str(folder / "data"), str(count), "--out", str(new / "data"))
    code, _, complaint = run(*words)
    assert code == 0, complaint
    return new


def connect(broker: Broker, name: str, *, clean_start: bool = False, **more: Will) -> Client:
    client = Client(
        tcp((broker.host, broker.port)), name, clean_start=clean_start, properties=KEPT, **more
    )
    connack = client.accepted()
    assert connack.session_present is not clean_start
    return client


def next_of(client: Client, kind: type[P]) -> P:
    """Return the next packet, which must be of a kind."""
    packet = client.read()
    assert isinstance(packet, kind), packet
    return packet


def subscribe(client: Client, filter: str, qos: int, identifier: int = 0) -> None:
    options = SubscriptionOptions(qos, identifier=identifier)
    properties = Properties(subscription_identifiers=(identifier,) if identifier else ())
    client.send(Subscribe(1, ((filter, options),), properties))
    assert next_of(client, Suback).reason_codes == (qos,)


def publish(broker: Broker, *messages: Publish) -> None:
    """Publish with an acknowledgement for each message."""
    client = connect(broker, "publisher", clean_start=True)
    for packet_id, message in enumerate(messages, 1):
        message.packet_id = packet_id
        client.send(message)
        if message.qos == 1:
            assert next_of(client, Puback).packet_id == packet_id
        else:
            assert next_of(client, Pubrec).packet_id == packet_id
            client.send(Pubrel(packet_id))
            next_of(client, Pubcomp)
    client.close()


def taken(client: Client, count: int) -> list[Publish]:
    """Take messages of QoS 1 and 2 with their acknowledgements."""
    found: list[Publish] = []
    done = 0
    while done < count:
        packet = client.read()
        if isinstance(packet, Publish):
            found.append(packet)
            if packet.qos == 1:
                client.send(Puback(packet.packet_id))
                done += 1
            else:
                client.send(Pubrec(packet.packet_id))
        else:
            assert isinstance(packet, Pubrel), packet
            client.send(Pubcomp(packet.packet_id))
            done += 1
    return found


def test_client_finds_all_of_its_session_after_each_change(tmp_path: Path) -> None:
    folder = tmp_path / "of"
    with broker_of(folder, 1) as broker:
        for name, filter, qos in (
            ("keeper", "a/#", 2),
            ("receiver", "b", 2),
            ("member-1", "$share/g/s", 1),
            ("member-2", "$share/g/s", 1),
            ("witness", "w", 1),
        ):
            client = connect(broker, name, clean_start=True)
            subscribe(client, filter, qos, identifier=5 if name == "keeper" else 0)
            if name != "receiver":
                client.close()
                continue
            publish(broker, Publish("b", b"released", 2), Publish("b", b"sent", 2))
            released, sent = next_of(client, Publish), next_of(client, Publish)
            client.send(Pubrec(released.packet_id))
            next_of(client, Pubrel)
            client.close()
        sender = connect(broker, "sender", clean_start=True)
        sender.send(Publish("a/sender", b"once", 2, packet_id=9))
        next_of(sender, Pubrec)
        sender.close()
        publish(broker, Publish("a/r", b"kept", 1, True))
        properties = Properties(will_delay_interval=2)
        connect(
            broker, "mortal", clean_start=True, will=Will("w", b"gone", 1, properties=properties)
        ).close()
    for count in (2, 3, 1):
        folder = move(folder, count)
        with broker_of(folder, count) as broker:
            number = b"%d" % count
            publish(broker, Publish("a/n", number, 2), Publish("s", number, 1))
    with broker_of(folder, 1) as broker:
        keeper = connect(broker, "keeper")
        messages = taken(keeper, 5)
        assert [each.payload for each in messages] == [b"once", b"kept", b"2", b"3", b"1"]
        assert {each.properties.subscription_identifiers for each in messages} == {(5,)}
        receiver = connect(broker, "receiver")
        assert next_of(receiver, Pubrel).packet_id == released.packet_id
        receiver.send(Pubcomp(released.packet_id))
        again = next_of(receiver, Publish)
        assert (again.packet_id, again.payload, again.dup) == (sent.packet_id, b"sent", True)
        sender = connect(broker, "sender")
        sender.send(Publish("a/sender", b"once", 2, packet_id=9, dup=True))
        next_of(sender, Pubrec)
        sender.send(Pubrel(9))
        next_of(sender, Pubcomp)
        publish(broker, Publish("a/end", b"end", 1))
        assert [each.payload for each in taken(keeper, 1)] == [b"end"]
        member = connect(broker, "member-1")
        assert [each.payload for each in taken(member, 3)] == [b"2", b"3", b"1"]
        newcomer = connect(broker, "newcomer", clean_start=True)
        subscribe(newcomer, "a/r", 1)
        assert next_of(newcomer, Publish).payload == b"kept"
        witness = connect(broker, "witness")
        assert next_of(witness, Publish).payload == b"gone"
        for client in (keeper, receiver, sender, member, newcomer, witness):
            client.close()
