"""`flowguard store ...` on real directories, and beside a real broker."""

import json
import re
import socket
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flowguard.cli import app
from flowguard.codec.packets import Connack, Puback, Suback, Subscribe
from flowguard.config import StoreSettings
from flowguard.errors import CorruptionError
from flowguard.records import (
    NEVER_S,
    Append,
    Delivery,
    PutInbound,
    PutRetained,
    PutSession,
    PutSubscription,
    PutWill,
    Release,
    Sent,
    Settle,
    SinkKind,
    StoreOp,
    WillRecord,
    key_of,
    packet_id_of,
)
from flowguard.stores.rocks import RocksStore
from flowguard.stores.rocks.database.engine import RocksEngine
from flowguard.stores.rocks.layouts.keys import record_key
from flowguard.types import MQTT_311, Properties, Publish, SubscriptionOptions
from store_tools.command import store as commands
from store_tools.rocks import salvage
from tests.flowguard.cli.http_port import http_address, run
from tests.flowguard.cli.test_serve import Caller
from tests.interop.broker import Broker, running_broker

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explain" / "durability.md"
SETTINGS = StoreSettings(durability="os", disk_reserve_bytes=0)
MESSAGE = Publish(
    "t/\u00e9",
    b"\x00\xff",
    2,
    True,
    properties=Properties(
        content_type="text/\u00e9",
        correlation_data=b"\xfe",
        user_properties=(("k", "v"), ("k", "[red]")),
    ),
)
OPTIONS = SubscriptionOptions(2, True, False, 1, 9)


def run_here(*arguments: str) -> tuple[int, str, str]:
    """Exit code, output and complaints, without a process of its own."""
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "100"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def open_store(folder: Path) -> RocksStore:
    return RocksStore(folder, SETTINGS, wall_s=lambda: 1.7e9, random_node=lambda: 7)


def delivery(payload: bytes, expires_at_s: float = NEVER_S) -> Delivery:
    return Delivery(Publish("t", payload, 2), 2, False, (), expires_at_s)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store with one of everything, and a client with a name to make trouble."""
    folder = tmp_path / "store"
    store = open_store(folder)
    appends: list[StoreOp] = [Append("big", pos, delivery(b"x" * 1_000)) for pos in range(1, 1_501)]
    store.commit(
        [
            PutSession("big", 0xFFFF_FFFF, None),
            PutSession("[red]\u20ac", 60, 1_800_000_000.5),
            PutSession("idle", 60, None),
            *appends,
            Append("[red]\u20ac", 1, Delivery(MESSAGE, 2, True, (3, 300), 1_900_000_000.0)),
            Append("[red]\u20ac", 2, delivery(b"two")),
            Append("[red]\u20ac", 3, delivery(b"three")),
            Sent("[red]\u20ac", 2),
            Release("[red]\u20ac", 2, packet_id_of(2, 2)),
            PutSubscription("[red]\u20ac", "t/#", OPTIONS),
            PutInbound("[red]\u20ac", 5),
            PutWill("[red]\u20ac", WillRecord(MESSAGE, 30)),
            PutRetained(MESSAGE, 1_950_000_000.0),
        ]
    )
    store.close()
    return folder


def damage(folder: Path) -> None:
    engine = RocksEngine(folder, SETTINGS)
    batch = engine.batch()
    batch.put(record_key(1), b"\x01", engine.queues.handle)
    engine.write(batch)
    engine.close()


# --- info -----------------------------------------------------------------------------------------


def test_info_shows_what_is_there_and_the_largest_queues(folder: Path) -> None:
    code, shown, _ = run_here("store", "info", str(folder))
    assert code == 0
    for words in (
        "format +1.0, layout window",
        "node +00000007",
        "closed +in good order",
        "sessions +3",
        r"queued +1,503 messages, 1\.7 MiB",
        "retained +1 message",
        r"on disk +\d",
        "big +1,500 .*does not end",
        r"\[red\]€ +3 .*ends 20",
    ):
        assert re.search(words, shown), words
    assert "idle" not in shown
    _, shown, _ = run_here("store", "info", str(folder), "--top", "1")
    assert "[red]" not in shown


def test_info_says_what_a_copy_is_and_what_crashed(folder: Path, tmp_path: Path) -> None:
    assert run_here("store", "backup", str(tmp_path / "copy"), "--data", str(folder))[0] == 0
    assert (
        "a copy that has not been opened yet"
        in run_here("store", "info", str(tmp_path / "copy"))[1]
    )
    store = open_store(folder)
    store._engine.close()
    (folder / "holder").unlink()
    assert "the process died" in run_here("store", "info", str(folder))[1]


# --- verify ---------------------------------------------------------------------------------------


def test_verify_is_quiet_about_a_good_store(folder: Path) -> None:
    code, shown, complaint = run_here("store", "verify", str(folder))
    assert (code, complaint) == (0, "")
    assert "3 sessions, 0 shared subscriptions with a queue, 1,503 queued messages" in shown
    assert "The store is consistent." in shown


def test_verify_lists_what_is_wrong(folder: Path) -> None:
    damage(folder)
    code, shown, complaint = run_here("store", "verify", str(folder))
    assert code == 1
    assert "session 'big': the record of a queue is cut short" in shown
    assert complaint == f"flowguard store verify: {folder} is damaged: 1 problem\n"


# --- export ---------------------------------------------------------------------------------------


def message_of(fields: dict[str, Any]) -> Publish:
    properties = dict(fields["properties"])
    if "correlation_data" in properties:
        properties["correlation_data"] = b64decode(properties["correlation_data"])
    properties["user_properties"] = tuple(map(tuple, properties.get("user_properties", ())))
    payload = b64decode(fields["payload"])
    found = Publish(fields["topic"], payload, fields["qos"], fields["retain"])
    found.properties = Properties(**properties)
    return found


def check_export(text: str) -> None:
    records = [json.loads(line) for line in text.splitlines()]
    kinds = [record["type"] for record in records]
    assert (kinds[0], kinds[-1]) == ("store", "end")
    assert records[-1]["records"] == len(records) - 1
    assert kinds.count("session") == 3
    mine = [record for record in records if record.get("client_id") == "[red]\u20ac"]
    session, subscription, inbound, sent, released, waiting = mine
    assert (session["expiry_interval_s"], session["ends_at_s"]) == (60, 1_800_000_000.5)
    assert (session["next_pos"], session["sent_pos"]) == (4, 2)
    assert session["will"]["delay_s"] == 30
    assert message_of(session["will"]["message"]) == MESSAGE
    for name in ("qos", "no_local", "retain_as_published", "retain_handling", "identifier"):
        assert subscription[name] == getattr(OPTIONS, name)
    assert inbound["packet_id"] == 5
    assert message_of(sent["message"]) == MESSAGE
    assert (sent["identifiers"], sent["expires_at_s"]) == ([3, 300], 1_900_000_000.0)
    assert [each["status"] for each in (sent, released, waiting)] == ["sent", "released", "waiting"]
    assert [each["pos"] for each in (sent, released, waiting)] == [1, 2, 3]
    assert "message" not in released
    assert waiting["expires_at_s"] is None
    (retained,) = [record for record in records if record["type"] == "retained"]
    assert message_of(retained["message"]) == MESSAGE
    assert retained["expires_at_s"] == 1_950_000_000.0


def test_export_writes_everything(folder: Path, tmp_path: Path) -> None:
    code, shown, complaint = run_here("store", "export", str(folder))
    assert (code, complaint) == (0, "")
    check_export(shown)
    out = tmp_path / "store.jsonl"
    assert run_here("store", "export", str(folder), "--out", str(out))[:2] == (0, "")
    assert out.read_text() == shown
    code, _, complaint = run_here("store", "export", str(folder), "--out", str(out))
    assert code == 2
    assert "exists" in complaint


def test_the_page_names_all_that_an_export_has(folder: Path) -> None:
    check_named(run_here("store", "export", str(folder))[1])


def check_named(shown: str) -> None:
    """Check that the page names all types and fields of an export."""
    page = PAGE.read_text()
    for line in shown.splitlines():
        record = json.loads(line)
        for name in (record["type"], *record):
            assert f"`{name}`" in page or f'"{name}"' in page, name


def test_an_export_that_was_cut_short_has_no_last_line(folder: Path) -> None:
    damage(folder)
    code, shown, complaint = run_here("store", "export", str(folder))
    assert code == 1
    assert '"end"' not in shown
    assert complaint == (
        "flowguard store export: session 'big': the record of a queue is cut short\n"
        "start on a backup: flowguard serve --data COPY; or save what can be read: "
        "flowguard store salvage DIRECTORY --out NEW\n"
    )


def test_salvage_that_fails_does_not_advise_itself(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise CorruptionError("nothing can be read")

    monkeypatch.setattr(salvage, "salvage", fails)
    assert run_here("store", "salvage", str(folder)) == (
        1,
        "",
        "flowguard store salvage: nothing can be read\n"
        "start on a backup: flowguard serve --data COPY\n",
    )


# --- merge, compact -------------------------------------------------------------------------------


def test_merge_makes_one_of_two(folder: Path, tmp_path: Path) -> None:
    copy, out = tmp_path / "copy", tmp_path / "out"
    run_here("store", "backup", str(copy), "--data", str(folder))
    for replica, payload in ((folder, b"here"), (copy, b"there")):
        store = open_store(replica)
        store.commit([Append("idle", 1, delivery(payload))])
        store.close()
    code, shown, _ = run_here("store", "merge", str(folder), str(copy), "--out", str(out))
    assert code == 0
    assert "3 sessions, 0 shared subscriptions with a queue, 1,505 queued messages" in shown
    assert "In both stores: 1,503 messages; in one only: 2, of these 1 with" in shown
    store = open_store(out)
    payloads = [entry.delivery.message.payload for entry in store.fetch("idle", 0, 9)]
    assert sorted(payloads) == [b"here", b"there"]
    store.close()


def test_compact_rewrites_the_tables(folder: Path) -> None:
    before = {path.name for path in folder.glob("*.sst")}
    code, shown, _ = run_here("store", "compact", str(folder))
    assert code == 0
    assert re.search(r"[\d.]+ [KM]iB before, [\d.]+ [KM]iB now", shown)
    assert not before & {path.name for path in folder.glob("*.sst")}
    assert run_here("store", "verify", str(folder))[0] == 0


# --- shared subscriptions -------------------------------------------------------------------------

FILTER = "$share/g/t/#"
GROUP = key_of(SinkKind.SHARED, FILTER)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A store with one group and its member: one message has moved to it, two wait for any
    member."""
    folder = tmp_path / "shared"
    store = open_store(folder)
    store.commit([PutSession(name, 0xFFFF_FFFF, None) for name in (GROUP, "member")])
    store.commit([PutSubscription("member", FILTER, OPTIONS)])
    store.commit([Append(GROUP, pos, delivery(b"%d" % pos)) for pos in (1, 2, 3)])
    store.commit([Release(GROUP, 1, 0), Append("member", 1, delivery(b"1"))])
    store.close()
    return folder


def test_the_queue_of_a_shared_subscription_is_no_session(shared: Path) -> None:
    shown = run_here("store", "info", str(shared))[1]
    for words in (
        "sessions +1 ",
        "shared +1 subscription with a queue",
        r"\$share/g/t/# +3 .*shared",
        "member +1 .*does not end",
    ):
        assert re.search(words, shown), words
    code, shown, _ = run_here("store", "verify", str(shared))
    assert code == 0
    assert "1 session, 1 shared subscription with a queue, 4 queued messages" in shown
    shown = run_here("store", "export", str(shared))[1]
    assert "\\u0000" not in shown
    _, group, moved, *waiting = [json.loads(line) for line in shown.splitlines()][:5]
    assert group == {"type": "group", "filter": FILTER, "next_pos": 4}
    assert moved == {"type": "entry", "filter": FILTER, "pos": 1, "status": "moved"}
    assert [(each["pos"], each["status"]) for each in waiting] == [(2, "waiting"), (3, "waiting")]
    assert message_of(waiting[0]["message"]).payload == b"2"
    test_the_page_names_all_that_an_export_has(shared)


def test_what_is_wrong_with_a_shared_subscription_is_said_of_it(shared: Path) -> None:
    damage(shared)
    shown = run_here("store", "verify", str(shared))[1]
    assert f"shared subscription '{FILTER}': the record of a queue is cut short" in shown


def test_a_merge_takes_from_a_group_what_a_member_on_either_side_has(
    shared: Path, tmp_path: Path
) -> None:
    copy, out = tmp_path / "copy", tmp_path / "out"
    run_here("store", "backup", str(copy), "--data", str(shared))
    there = delivery(b"2")
    for replica, ops in (
        (shared, [Settle(GROUP, 3), Append(GROUP, 4, delivery(b"here"))]),
        (copy, [Release(GROUP, 2, 0), Append("member", 2, there), Settle(GROUP, 2)]),
    ):
        store = open_store(replica)
        store.commit(ops)
        store.close()
    code, shown, _ = run_here("store", "merge", str(shared), str(copy), "--out", str(out))
    assert code == 0
    assert "1 session, 1 shared subscription with a queue" in shown
    store = open_store(out)
    left = {
        name: [each.delivery.message.payload for each in store.fetch(name, 0, 9) if each.delivery]
        for name in (GROUP, "member")
    }
    store.close()
    assert left == {GROUP: [b"here"], "member": [b"1", b"2"]}


# --- what cannot be done --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["info", "{tmp}/nothing"], "info: there is no directory {tmp}/nothing"),
        (["verify", "{tmp}/nothing"], "verify: there is no directory"),
        (["export", "{tmp}/nothing"], "export: there is no directory"),
        (["compact", "{tmp}/nothing"], "compact: there is no directory"),
        (["backup", "{tmp}/copy", "--data", "{tmp}/nothing"], "backup: there is no directory"),
        (["backup", "{store}", "--data", "{store}"], "{store} exists"),
        (["merge", "{store}", "{tmp}/nothing", "--out", "{tmp}/out"], "there is no directory"),
        (["merge", "{store}", "{store}", "--out", "{tmp}/out"], "are the same directory"),
        (["merge", "{store}", "{tmp}", "--out", "{store}"], "{store} exists"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    folder: Path, tmp_path: Path, arguments: list[str], says: str
) -> None:
    names = {"tmp": tmp_path, "store": folder}
    code, _, complaint = run_here("store", *(word.format(**names) for word in arguments))
    assert code == 2
    assert says.format(**names) in complaint
    assert complaint.count("\n") == 1


@pytest.mark.parametrize("command", ["info", "verify", "export", "compact"])
def test_a_directory_that_is_no_store_is_exit_code_1(tmp_path: Path, command: str) -> None:
    (tmp_path / "mosquitto.db").write_text("")
    code, shown, complaint = run_here("store", command, str(tmp_path))
    assert (code, shown) == (1, "")
    assert complaint == f"flowguard store {command}: {tmp_path} is no store\n"


# --- beside a broker ------------------------------------------------------------------------------


def queue_a_message(broker: Broker, payload: bytes) -> None:
    """For a subscriber that is not there."""
    with Caller(broker, client_id="publisher") as publisher:
        assert isinstance(publisher.read(), Connack)
        publisher.send(Publish("t", payload, 1, packet_id=1))
        answer = publisher.read()
        assert isinstance(answer, Puback)
        assert answer.reason_code < 0x80


def subscribe(broker: Broker) -> None:
    with subscriber(broker) as caller:
        assert isinstance(caller.read(), Connack)
        caller.send(Subscribe(1, (("t", SubscriptionOptions(1)),)))
        assert isinstance(caller.read(), Suback)


def subscriber(broker: Broker) -> Caller:
    return Caller(broker, MQTT_311, "subscriber", clean_start=False)


@pytest.mark.slow
def test_a_backup_of_a_running_broker_is_what_the_next_one_starts_on(tmp_path: Path) -> None:
    copy = tmp_path / "restored" / "data"
    copy.parent.mkdir()
    with running_broker(tmp_path / "first") as broker:
        url = http_address(broker)
        subscribe(broker)
        queue_a_message(broker, b"before the backup")
        code, shown, _ = run("store", "backup", str(copy), "--url", url)
        assert (code, shown) == (0, f"{copy} is a copy of the store of the broker at {url}.\n")
        queue_a_message(broker, b"after it")
    with running_broker(tmp_path / "restored") as broker, subscriber(broker) as caller:
        connack = caller.read()
        assert isinstance(connack, Connack)
        assert connack.session_present
        message = caller.read()
        assert isinstance(message, Publish)
        assert message.payload == b"before the backup"


@pytest.mark.slow
def test_who_holds_the_directory_is_said(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        for command in ("info", "verify", "export", "compact"):
            code, _, complaint = run_here("store", command, str(tmp_path / "data"))
            assert code == 1
            assert f"is open in process {broker.process.pid} since" in complaint
            assert complaint.count("stop that one") == 1
        queue_a_message(broker, b"it does not mind")


@pytest.mark.slow
def test_a_backup_finds_out_that_a_broker_runs_and_asks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    with running_broker(tmp_path) as broker:
        monkeypatch.setattr(commands, "DEFAULT_URL", http_address(broker))
        code, shown, _ = run_here("store", "backup", str(copy), "--data", str(data))
        assert code == 0
        assert f"is open in process {broker.process.pid} since" in shown
        assert "stop that one" not in shown
        assert f"{copy} is a copy of the store of the broker" in shown
    assert run_here("store", "verify", str(copy))[0] == 0


@pytest.mark.slow
def test_a_backup_asks_no_broker_but_the_one_that_has_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy"
    with running_broker(tmp_path / "one") as one, running_broker(tmp_path / "other") as other:
        monkeypatch.setattr(commands, "DEFAULT_URL", http_address(other))
        mine = str(tmp_path / "one" / "data")
        code, _, complaint = run_here("store", "backup", str(copy), "--data", mine)
        assert code == 1
        assert f"is another one, process {other.process.pid}" in complaint
        assert "--url URL" in complaint
        assert not copy.exists()
        assert run("store", "backup", str(copy), "--url", http_address(one))[0] == 0
        assert "copied while it was open" in run("store", "info", str(copy))[1]


def test_where_nobody_answers_is_said(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"127.0.0.1:{taken.getsockname()[1]}"
    code, shown, complaint = run_here("store", "backup", str(tmp_path / "copy"), "--url", url)
    assert (code, shown) == (1, "")
    assert f"no answer from http://{url}: Connection refused" in complaint
    assert "--url URL" in complaint
    assert "under way" not in complaint


@pytest.mark.slow
def test_a_broker_that_makes_no_copy_says_why(tmp_path: Path) -> None:
    with running_broker(tmp_path, "--store", "memory") as broker:
        url = http_address(broker)
        code, _, complaint = run("store", "backup", str(tmp_path / "copy"), "--url", url)
    assert code == 1
    assert complaint.startswith(
        f"flowguard store backup: the broker at {url} made no copy: the memory store has nothing"
    )
