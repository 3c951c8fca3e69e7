"""Two replicas become one: the published example, and what each rule is for.

The laws are in `test_merge_laws`.
"""

import hashlib
import shutil
from pathlib import Path

import pytest

from flowguard.codec.packets import Connack, Pubcomp, Pubrec, Pubrel
from flowguard.errors import CorruptionError, FormatError, LockedError, StoreError
from flowguard.kafka_settings import OWNER_FILE
from flowguard.records import NEVER_S, Append, Delivery, PutSession, Settle, packet_id_of
from flowguard.stores.messages import encode_message
from flowguard.stores.rocks import RocksStore
from flowguard.stores.rocks.identity import put_identity, read_identity
from flowguard.types import Publish
from store_tools.rocks.merge import merge
from tests.store_tools.rocks.replicas import (
    SETTINGS,
    Site,
    World,
    look,
    merged,
    merged_with_report,
)
from tests.support.real import Wire, broker, connect, connect_packet, open_wire, publishes, until


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def pair(world: World) -> tuple[Site, Site]:
    """A store with clients "a" and "ab" that were sent two messages each, and a copy of it."""
    first = Site(world, world.folder())
    for client_id in ("a", "ab"):
        first.connect(client_id)
        first.publish([client_id])
        first.publish([client_id])
        first.send(client_id, 2)
    return first, first.fork()


def closed(*sites: Site) -> list[Path]:
    for site in sites:
        site.close()
    return [site.folder for site in sites]


# --- the published example ------------------------------------------------------------------------


async def resumed(wire: Wire) -> None:
    await wire.send(connect_packet("subscriber", durable=True))
    assert (await wire.expect(Connack)).session_present


async def given_to_subscriber(world: World, folder: Path, payload: bytes) -> Publish:
    """Run a broker on `folder` that takes a message, and sends it to a subscriber that does not
    answer."""
    async with broker(store=world.open(folder), calm=True) as running:
        publisher = await connect(running, "publisher")
        await publisher.send(*publishes("t", 1, payload=payload))
        await publisher.receive()
        wire = await open_wire(running)
        await resumed(wire)
        found = await wire.expect(Publish)
        await wire.close()
        await publisher.close()
    world.now_ms += 1_000
    return found


async def test_two_messages_of_one_packet_identifier_on_two_sides_of_a_split_both_arrive(
    world: World,
) -> None:
    """The example of the source: deduplicated by packet identifier, one of them would be lost."""
    first, second, out = world.folder(), world.folder(), world.folder()
    async with broker(store=world.open(first), calm=True) as running:
        wire = await connect(running, "subscriber", durable=True)
        await wire.subscribe("t", 1)
        await wire.close()
    shutil.copytree(first, second)
    one = await given_to_subscriber(world, first, b"on the first side")
    other = await given_to_subscriber(world, second, b"on the second side")
    assert one.packet_id == other.packet_id
    assert one.payload != other.payload
    merge(first, second, out, random_node=lambda: 99)
    async with broker(store=world.open(out), calm=True) as running:
        wire = await open_wire(running)
        await resumed(wire)
        kept, late = await wire.expect(Publish), await wire.expect(Publish)
        await wire.close()
    assert (kept.payload, kept.packet_id, kept.dup) == (other.payload, other.packet_id, True)
    assert (late.payload, late.dup) == (one.payload, False)
    assert late.packet_id != one.packet_id


async def test_an_exchange_that_one_side_has_begun_is_ended_after_the_merge(world: World) -> None:
    """PUBREC on one side, nothing on the other: PUBREL, and the message not again."""
    first, second, out = world.folder(), world.folder(), world.folder()
    async with broker(store=world.open(first), calm=True) as running:
        wire = await connect(running, "subscriber", durable=True)
        await wire.subscribe("t", 2)
        publisher = await connect(running, "publisher")
        await publisher.send(*publishes("t", 1, 2))
        await publisher.expect(Pubrec)
        await publisher.send(Pubrel(1))
        await publisher.expect(Pubcomp)
        sent = await wire.expect(Publish)
        await wire.close()
        await publisher.close()
    shutil.copytree(first, second)
    async with broker(store=world.open(second), calm=True) as running:
        wire = await open_wire(running)
        await resumed(wire)
        assert (await wire.expect(Publish)).packet_id == sent.packet_id
        await wire.send(Pubrec(sent.packet_id))
        await wire.expect(Pubrel)
        await wire.close()
    merge(first, second, out, random_node=lambda: 99)
    async with broker(store=world.open(out), calm=True) as running:
        wire = await open_wire(running)
        await resumed(wire)
        assert (await wire.expect(Pubrel)).packet_id == sent.packet_id
        await wire.send(Pubcomp(sent.packet_id))
        await until(lambda: not running.node.registry.sessions["subscriber"].inflight.messages)
        await wire.close()


# --- queues ---------------------------------------------------------------------------------------


def test_what_one_side_settled_is_settled(world: World, pair: tuple[Site, Site]) -> None:
    first, second = pair
    first.settle("a", 0)
    second.settle("a", 1)
    out, report = merged_with_report(world, *closed(*pair))
    assert {key[0] for key in look(out).entries} == {"ab"}
    assert (report.entries.settled, report.entries.both) == (1, 2)


def test_the_side_connected_later_keeps_its_places_and_the_other_follows(
    world: World, pair: tuple[Site, Site]
) -> None:
    first, second = pair
    kept = [second.publish(["a"]), second.publish(["a"])]
    late = [first.publish(["a"]), first.publish(["a"]), first.publish(["a"])]
    second.connect("a")
    found = look(merged(world, *closed(*pair)))
    assert [found.places["a", token] for token in kept] == [3, 4]
    assert [found.places["a", token] for token in late] == [6, 7, 8]
    assert found.sent["a"] == 2


def test_where_the_winner_has_nothing_new_the_other_side_keeps_its_places_too(
    world: World, pair: tuple[Site, Site]
) -> None:
    first, second = pair
    tokens = [first.publish(["a"]), first.publish(["a"])]
    first.send("a", 1)
    second.connect("a")
    out, report = merged_with_report(world, *closed(*pair))
    found = look(out)
    assert [found.places["a", token] for token in tokens] == [3, 4]
    assert found.sent["a"] == 3
    assert (report.entries.new, report.entries.late) == (2, 0)


def test_what_either_side_has_sent_was_sent(world: World, pair: tuple[Site, Site]) -> None:
    """In flight outranks waiting: the message may be sent again, so it must be marked as sent."""
    first, _ = pair
    for _ in range(3):
        first.publish(["a"])
    second = first.fork(by_hand=True)
    first.send("a", 2)
    second.connect("a")
    second.publish(["a"])
    assert look(merged(world, *closed(first, second))).sent["a"] == 4


def test_a_position_that_the_winner_has_used_is_not_used_again(
    world: World, pair: tuple[Site, Site]
) -> None:
    first, second = pair
    second.deliver("a", 2, released=False)
    token = first.publish(["a"])
    second.connect("a")
    found = look(merged(world, *closed(*pair)))
    assert (found.places["a", token], found.sent["a"]) == (4, 3)


def test_nothing_counts_as_sent_because_the_other_side_was_further(
    world: World, pair: tuple[Site, Site]
) -> None:
    """Its place is free; but what is sent is a beginning of the queue."""
    first, second = pair
    waiting = [second.publish(["a"]), second.publish(["a"])]
    for _ in range(2):
        first.deliver("a", 2, released=False)
    late = first.publish(["a"])
    first.send("a", 1)
    second.connect("a")
    found = look(merged(world, *closed(*pair)))
    assert [found.places["a", token] for token in [*waiting, late]] == [3, 4, 6]
    assert found.sent["a"] == 2


def test_a_released_message_without_a_place_is_the_clients(
    world: World, pair: tuple[Site, Site]
) -> None:
    """Its packet identifier is another message's now, whose exchange ends it."""
    first, second = pair
    first.publish(["a"])
    first.send("a", 1)
    first.release("a", 2)
    kept = second.publish(["a"])
    second.send("a", 1)
    second.connect("a")
    out, report = merged_with_report(world, *closed(*pair))
    found = look(out)
    assert report.entries.done == 1
    assert found.packet_ids["a", kept] == packet_id_of(3, 2)
    assert not any(found.entries.values())


def test_a_released_message_whose_place_is_free_still_owes_pubrel(
    world: World, pair: tuple[Site, Site]
) -> None:
    first, second = pair
    released = first.publish(["a"])
    first.send("a", 1)
    first.release("a", 2)
    second.publish(["a"])
    second.publish(["a"])
    second.send("a", 2)
    second.settle("a", 2)
    second.connect("a")
    found = look(merged(world, *closed(*pair)))
    assert found.entries["a", released]
    assert (found.places["a", released], found.packet_ids["a", released]) == (3, packet_id_of(3, 2))
    assert found.sent["a"] == 4


def test_entries_that_were_moved_are_recognised_later(
    world: World, pair: tuple[Site, Site]
) -> None:
    """The same message at two positions: in the replica, and where a merge has put it."""
    first, second = pair
    second.publish(["a"])
    token = first.publish(["a"])
    second.connect("a")
    folders = closed(*pair)
    both = merged(world, *folders)
    assert look(folders[0]).places["a", token] != look(both).places["a", token]
    again, report = merged_with_report(world, both, folders[0])
    assert look(again).places == look(both).places
    assert report.entries.late == 0
    first = Site(world, folders[0], first.model)
    first.send("a", 9)
    first.settle("a", 2)
    first.close()
    assert ("a", token) not in look(merged(world, both, folders[0])).entries


# --- sessions and what belongs to them ------------------------------------------------------------


def test_a_session_that_one_side_ended_is_over_unless_it_has_something_new(
    world: World, pair: tuple[Site, Site]
) -> None:
    first, second = pair
    for client_id in ("a", "ab"):
        second.drop(client_id)
    token = first.publish(["ab"])
    out, report = merged_with_report(world, *closed(*pair))
    assert list(look(out).entries) == [("ab", token)]
    assert (report.sessions, report.ended) == (1, 1)
    store = world.open(out)
    while store.maintain():
        pass
    assert [record.client_id for record in store.sessions()] == ["ab"]
    assert len(store._engine.queues.scan(b"", b"\xff" * 9)) == 2
    store.close()


def test_what_one_side_unsubscribed_or_completed_does_not_come_back(
    world: World, pair: tuple[Site, Site]
) -> None:
    first, second = pair
    for site in pair:
        site.close()
    first, second = Site(world, first.folder, first.model), Site(world, second.folder, second.model)
    first.subscribe("a", "both", 1)
    second.subscribe("a", "both", 2)
    second.receive("a", 7)
    third = second.fork()
    third.unsubscribe("a", "both")
    third.complete("a", 7)
    third.subscribe("a", "new", 1)
    rows = look(merged(world, *closed(first, third))).rows
    assert {key: row[1:] for key, row in rows.items()} == {("a", "both"): (1,), ("a", "new"): (1,)}
    second.close()
    rows = look(merged(world, second.folder, third.folder)).rows
    assert set(rows) == {("a", "new")}
    rows = look(merged(world, first.folder, second.folder)).rows
    assert rows["a", "both"][1] == 2
    assert ("a", 7) in rows


def test_the_later_retained_message_of_a_topic_stays_and_a_deleted_one_is_deleted(
    world: World, pair: tuple[Site, Site]
) -> None:
    first, _ = pair
    for topic in ("old", "gone", "again"):
        first.retain(topic)
    second = first.fork()
    first.retain("old")
    second.retain("old")
    first.unretain("gone")
    first.unretain("again")
    second.retain("again")
    found = look(merged(world, *closed(first, second)))
    assert found.rows == {key: second.model.rows[key] for key in [("", "old"), ("", "again")]}


# --- messages that queues share -------------------------------------------------------------------


def payloads_of(folder: Path, world: World) -> int:
    store = world.open(folder)
    while store.maintain():
        pass
    found = len(store._engine.payloads.scan(b"", b"\xff" * 16, 2**20, 2**40))
    store.close()
    return found


def test_a_shared_message_is_stored_once_and_copied_only_where_it_is_new(
    world: World, pair: tuple[Site, Site]
) -> None:
    first, _ = pair
    first.publish(["a", "ab"], 600)
    second = first.fork()
    second.publish(["a", "ab"], 600)
    first.publish(["a", "ab"], 600)
    folders = closed(first, second)
    out, report = merged_with_report(world, *folders)
    assert report.payloads == 1
    assert len(look(out).entries) == 2 * (2 + 3)
    assert payloads_of(out, world) == 3


@pytest.mark.parametrize("swapped", [False, True])
def test_a_new_entry_of_an_old_message_finds_it(
    world: World, pair: tuple[Site, Site], swapped: bool
) -> None:
    """It was shared before the split; one side has deleted it, the other appends it once more."""
    first, _ = pair
    message = Publish("t", b"%d " % (world.now_ms + 1) + bytes(600), 1)
    sent = Delivery(message, 1, False, (), NEVER_S)
    first._put(*(Append(client_id, 3, sent) for client_id in ("a", "ab")))
    second = first.fork()
    for client_id in ("a", "ab"):
        first.send(client_id, 9)
        first._commit(*(Settle(client_id, pos) for pos in (1, 2, 3)))
    while first.store.maintain():
        pass
    assert first.store._engine.payloads.scan(b"", b"\xff" * 16) == []
    again = second.store.fetch("a", 2, 1)[0].delivery
    assert again is not None
    world.now_ms += 1
    second.store.commit([PutSession("new", 9, None), Append("new", 1, again)])
    folders = closed(*((second, first) if swapped else (first, second)))
    out = merged(world, *folders)
    store = world.open(out)
    (entry,) = store.fetch("new", 0, 9)
    assert entry.delivery is not None
    assert entry.delivery.message == message
    assert store.fetch("a", 0, 9) == []
    store.close()


# --- directories ----------------------------------------------------------------------------------


def fingerprint(folder: Path) -> dict[str, tuple[int, str]]:
    return {
        path.name: (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in folder.iterdir()
    }


def test_the_originals_stay_as_they_are(world: World, pair: tuple[Site, Site]) -> None:
    pair[0].publish(["a"])
    pair[1].store._engine._db.cancel_all_background(True)
    crashed = shutil.copytree(pair[1].folder, world.folder())
    first, _ = closed(*pair)
    before = fingerprint(first), fingerprint(crashed)
    world.open(merged(world, first, crashed)).close()
    assert (fingerprint(first), fingerprint(crashed)) == before


def test_the_new_store_says_that_kafka_has_queues(world: World, pair: tuple[Site, Site]) -> None:
    first, second = closed(*pair)
    (second / OWNER_FILE).write_text("its name")
    assert (merged(world, first, second) / OWNER_FILE).read_text() == ""


def test_the_new_store_has_received_what_both_have_and_is_somebody_else(
    world: World, pair: tuple[Site, Site]
) -> None:
    for site in pair:
        site.publish(["a"])
    first, second = closed(*pair)
    out = merged(world, first, second)
    store = world.open(out)
    found = read_identity(store._engine, out)
    store.close()
    assert found is not None
    received = [look(folder).received for folder in (first, second)]
    for node in received[0].keys() | received[1].keys():
        assert found.former[node] == max(each.get(node, b"") for each in received)
    assert found.node not in found.former
    assert found.hlc >= max(found.former.values())
    assert not found.is_copy


def test_stores_that_were_never_one_can_be_merged(world: World) -> None:
    sites = Site(world, world.folder()), Site(world, world.folder())
    for site in sites:
        site.connect("a")
        site.publish(["a"])
        site.send("a", 1)
    assert len(look(merged(world, *closed(*sites))).entries) == 2


def test_two_that_went_on_under_one_number_are_refused(
    world: World, pair: tuple[Site, Site]
) -> None:
    """As clones of a whole disk would: inode and all."""
    first, second = pair
    original = read_identity(first.store._engine, first.folder)
    assert original is not None
    batch = second.store._engine.batch()
    put_identity(second.store._engine, batch, original, second.folder)
    second.store._engine.write(batch)
    out = world.folder()
    with pytest.raises(StoreError, match=original.node.hex()):
        merge(*closed(*pair), out, random_node=lambda: 9)
    assert not out.exists()


def test_the_other_layout_cannot_be_merged(world: World, tmp_path: Path) -> None:
    settings = SETTINGS.model_copy(update={"layout": "status"})
    RocksStore(tmp_path / "status", settings, wall_s=lambda: 0.0, random_node=lambda: 5).close()
    site = Site(world, world.folder())
    site.close()
    for folders in ((tmp_path / "status", site.folder), (site.folder, tmp_path / "status")):
        with pytest.raises(FormatError, match=r"'status'.*only 'window'"):
            merge(*folders, tmp_path / "out", random_node=lambda: 9)


def test_nothing_is_left_of_a_merge_that_fails(world: World, pair: tuple[Site, Site]) -> None:
    first, second = pair
    engine = second.store._engine
    message = Publish("t", b"lost", 1)
    sent = Delivery(message, 1, False, (), NEVER_S)
    second._put(Append("a", 3, sent), Append("ab", 3, sent))
    batch = engine.batch()
    record = engine.queues.scan(b"", b"\xff" * 9, 1)[0]
    batch.put(record[0], b"\x7f" + encode_message(message), engine.queues.handle)
    folders = closed(first)
    engine.write(batch)
    engine.close()
    out = world.folder()
    before = sorted(path.name for path in world.root.iterdir())
    with pytest.raises(CorruptionError):
        merge(*folders, second.folder, out, random_node=lambda: 9)
    assert sorted(path.name for path in world.root.iterdir()) == before


def test_a_store_that_is_open_or_a_folder_that_exists_is_refused(
    world: World, pair: tuple[Site, Site]
) -> None:
    first, second = pair
    second.close()
    with pytest.raises(LockedError, match="is open in process"):
        merge(first.folder, second.folder, world.folder(), random_node=lambda: 9)
    first.publish(["a"])
    first.close()
    with pytest.raises(StoreError, match="exists"):
        merge(first.folder, second.folder, first.folder, random_node=lambda: 9)
    with pytest.raises(FormatError, match="no store"):
        merge(first.folder, world.root, world.folder(), random_node=lambda: 9)
