"""POST /backup: a copy of the store of a running broker; its callers, folder, and frequency."""

import json
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from flowguard.codec.packets import Puback
from flowguard.config import StoreSettings
from flowguard.errors import StoreError
from flowguard.ops.web.backup import Backups, folder_of
from flowguard.ops.web.callers import is_from_here
from flowguard.ops.web.http import Keys
from flowguard.ops.web.http_connection import BadRequest, Request
from flowguard.stores import MemoryStore
from flowguard.stores.rocks import RocksStore
from store_tools.rocks.reader import StoreReader
from tests.support.http import CHANGES, head, post_backup, send, watched
from tests.support.real import TEST_S, connect, offline_subscriber, publishes, until

AT_ONCE: dict[str, dict[str, Any]] = {"http": {"backup_interval_s": 0}}


def open_store(folder: Path) -> RocksStore:
    settings = StoreSettings(durability="os", disk_reserve_bytes=0)
    return RocksStore(folder, settings, wall_s=lambda: 1.7e9, random_node=lambda: 7)


async def test_a_backup_of_a_running_broker_has_all_that_it_acknowledged(tmp_path: Path) -> None:
    async with watched(store=open_store(tmp_path / "store")) as (running, address):
        await offline_subscriber(running, "t")
        publisher = await connect(running, "p")
        await publisher.send(*publishes("t", 3))
        for _ in range(3):
            await publisher.expect(Puback)
        asked = {"folder": str(tmp_path / "copy")}
        code, _, said = await post_backup(address, asked, CHANGES)
        assert (code, said) == (200, asked)
        await publisher.send(*publishes("t", 1))
        await publisher.expect(Puback)
        await publisher.close()
    with StoreReader(tmp_path / "copy") as reader:
        assert reader.identity.is_copy
        assert [session.queue.count for session in reader.sessions()] == [3]


async def test_backups_go_on_while_publishers_do(tmp_path: Path) -> None:
    async with watched(AT_ONCE, store=open_store(tmp_path / "store")) as (running, address):
        await offline_subscriber(running, "t")
        publisher = await connect(running, "p")
        made: list[int] = []

        async def back_up() -> None:
            for number in range(3):
                asked = {"folder": f"{tmp_path}/{number}"}
                made.append((await post_backup(address, asked, CHANGES))[0])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(back_up)
            while len(made) < 3:
                await publisher.send(*publishes("t", 1))
                await publisher.expect(Puback)
        await publisher.close()
    assert made == [200] * 3
    counts = []
    for number in range(3):
        with StoreReader(tmp_path / str(number)) as reader:
            counts += [session.queue.count for session in reader.sessions()]
    assert counts == sorted(counts)


async def test_a_backup_that_cannot_be_made_says_why_and_the_broker_goes_on(
    tmp_path: Path,
) -> None:
    async with watched(AT_ONCE, store=open_store(tmp_path / "store")) as (running, address):
        for folder, why in ((tmp_path, "exists"), (tmp_path / "no" / "folder", "No such file")):
            code, _, said = await post_backup(address, {"folder": str(folder)}, CHANGES)
            assert code == 409
            assert why in said["error"]
        client = await connect(running, "c", durable=True)
        await client.close()
    async with watched() as (_, address):
        code, _, said = await post_backup(address, {"folder": str(tmp_path / "copy")}, CHANGES)
    assert code == 409
    assert "memory" in said["error"]


# --- where -------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["store/copy", "store/below/copy", "link/copy", "name"])
async def test_no_copy_is_made_inside_the_data_directory(place: str, tmp_path: Path) -> None:
    """Not through a link to it, and not as a link into it."""
    data = tmp_path / "store"
    async with watched(AT_ONCE, store=open_store(data)) as (_, address):
        (data / "below").mkdir()
        (tmp_path / "link").symlink_to(data)
        (tmp_path / "name").symlink_to(data / "copy")
        before = sorted(data.iterdir())
        code, _, said = await post_backup(address, {"folder": str(tmp_path / place)}, CHANGES)
        assert code == 409
        assert f"lies in {data}" in said["error"]
        assert sorted(data.iterdir()) == before
        asked = {"folder": str(tmp_path / "beside")}
        assert (await post_backup(address, asked, CHANGES))[0] == 200


@pytest.mark.parametrize(
    "body",
    [
        {"folder": "relative"},
        {"folder": 5},
        {"folder": "/a\0b"},
        {"folder": "/\ud800"},
        {"folder": None},
        {"folder": ["/a"]},
        {},
        [],
        None,
        b"",
        b"no json",
        b'{"folder": "/\\udc80"}',
        b"\xff\xfe\x00",
        b"[" * 16_000,
        b'{"folder":' * 1_600,
        b"9" * 16_000,
    ],
    ids=lambda body: repr(body)[:20],
)
async def test_what_names_no_folder_is_400(body: object) -> None:
    async with watched() as (_, address):
        code, _, said = await post_backup(address, body, CHANGES)
        assert code == 400
        assert "absolute" in said["error"]


@given(body=st.binary() | st.text().map(lambda name: json.dumps({"folder": f"/{name}"}).encode()))
def test_a_folder_is_absolute_and_can_be_named_on_a_disk(body: bytes) -> None:
    with suppress(BadRequest):
        folder = folder_of(body)
        assert folder.is_absolute()
        assert b"\0" not in str(folder).encode()


@given(value=st.recursive(st.none() | st.booleans() | st.text(), lambda inner: st.lists(inner)))
def test_other_json_names_none(value: object) -> None:
    for body in (value, {"folder": [value]}):
        with pytest.raises(BadRequest, match="an absolute path"):
            folder_of(json.dumps(body).encode())


# --- for whom ----------------------------------------------------------------------------------


@pytest.mark.parametrize("header", ["X-Forwarded-For: 192.0.2.1", "Forwarded: for=192.0.2.1"])
async def test_a_backup_is_not_for_other_machines(header: str, tmp_path: Path) -> None:
    """Not through a proxy on this one, either."""
    async with watched(store=open_store(tmp_path / "store")) as (_, address):
        asked = {"folder": str(tmp_path / "copy")}
        assert (await post_backup(address, asked, CHANGES, header))[0] == 403
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize(
    "headers",
    [
        ["Content-Type: text/plain"],
        ["Content-Type: application/x-www-form-urlencoded"],
        ["Content-Type: application/json"],
        ["X-Flowguard: 0"],
    ],
)
async def test_a_backup_is_not_for_a_page_that_somebody_has_open(
    headers: list[str], tmp_path: Path
) -> None:
    async with watched(store=open_store(tmp_path / "store")) as (_, address):
        asked = {"folder": str(tmp_path / "copy")}
        code, _, said = await post_backup(address, asked, *headers)
        assert code == 403
        assert CHANGES in said["error"]
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("192.0.2.1", False),
        ("2001:db8::1", False),
        ("fe80::1%eth0", False),
        ("::ffff:192.0.2.1", False),
    ],
)
def test_who_is_on_this_machine(host: str, here: bool) -> None:
    assert is_from_here(Request("POST", "/backup", {}, host)) is here


# --- how often ---------------------------------------------------------------------------------


class Asked:
    """A connection whose body has been read already."""

    is_served = False

    async def body(self) -> bytes:
        return b'{"folder": "/copy"}'


@pytest.mark.parametrize(
    ("path", "peer", "token", "code"),
    [
        ("/clients/kick", "127.0.0.1", None, None),
        ("/clients/kick", "192.0.2.1", None, 403),
        ("/clients/kick", "192.0.2.1", b"token", None),
        *((path, "192.0.2.1", b"token", 403) for path in ("/backup", "/reload", "/log")),
    ],
)
def test_other_machines_may_change_with_a_token_what_is_not_local(
    path: str, peer: str, token: bytes | None, code: int | None
) -> None:
    request = Request("POST", path, {"x-flowguard": "1"}, peer)
    refusal = Keys(frozenset(), token).refusal_of_change(request)
    assert (None if refusal is None else refusal.code) == code


async def ask(backups: Backups) -> tuple[int, str, tuple[tuple[str, str], ...]]:
    here = Request("POST", "/backup", {"x-flowguard": "1"}, "127.0.0.1")
    answer = await backups.answer(here, Asked())  # type: ignore[arg-type]
    return answer.code, answer.body.decode(), answer.headers


async def test_between_two_copies_is_a_pause(autojump_clock: trio.testing.MockClock) -> None:
    made: list[float] = []
    fails = False

    async def backup(_: Path) -> None:
        await trio.sleep(60)
        made.append(trio.current_time())
        if fails:
            raise StoreError("on purpose")

    backups = Backups(backup, trio.current_time, 10)
    assert (await ask(backups))[0] == 200
    code, said, headers = await ask(backups)
    assert (code, headers) == (429, (("retry-after", "10"),))
    assert "http.backup_interval_s" in said
    await trio.sleep(9.5)
    assert (await ask(backups))[2] == (("retry-after", "1"),)
    await trio.sleep(0.5)
    fails = True
    assert (await ask(backups))[0] == 409
    assert (await ask(backups))[0] == 429
    await trio.sleep(10)
    assert (await ask(backups))[0] == 409
    assert len(made) == 3


class SlowCopies(MemoryStore):
    """A store whose copies take until `may_end` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.began = threading.Event()
        self.may_end = threading.Event()

    def backup(self, folder: Path) -> None:
        self.began.set()
        self.may_end.wait(TEST_S)


async def test_there_is_one_at_a_time_also_where_who_asked_has_gone() -> None:
    store = SlowCopies()
    body = b'{"folder": "/copy"}'
    async with watched(AT_ONCE, store=store) as (_, address):
        top = head("POST /backup", f"Content-Length: {len(body)}", CHANGES)
        first = await send(address, top + body)
        await until(store.began.is_set)
        for _ in range(2):
            code, headers, said = await post_backup(address, body, CHANGES)
            assert (code, headers["retry-after"]) == (429, "1")
            assert "one at a time" in said["error"]
            await first.aclose()
        store.may_end.set()
        with trio.fail_after(TEST_S):
            while (await post_backup(address, body, CHANGES))[0] == 429:
                pass
        assert (await post_backup(address, body, CHANGES))[0] == 200
