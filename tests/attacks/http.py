"""Attacks on the HTTP port: slow clients, web pages in a browser, and odd backups."""

import json
import socket
import time
from typing import Any

import trio

from tests.attacks.attack import Attack, Finding, Size
from tests.attacks.probes import serves
from tests.attacks.victim import ANSWER_S, HOST, Victim, victim

HEALTH_S = 1.0
OURS = "X-Flowguard: 1"
STRANGE = "evil.example"
PATHS = ("/status", "/metrics", "/health", "/explain/polite")


# --- slow clients --------------------------------------------------------------------------------


async def slow_http(size: Size) -> Finding:
    """40 clients of HTTP send one byte each; then another one requests the broker's health."""
    async with victim(size.folder) as broker:
        slow = [socket.create_connection(door(broker)) for _ in range(size.of(40, 40))]
        for sock in slow:
            sock.send(b"G")
        await trio.sleep(0.5)
        found = await health(broker, size)
        for sock in slow:
            sock.close()
    return found


async def health(broker: Victim, size: Size) -> Finding:
    began_s = time.monotonic()
    limit_s = HEALTH_S if size.is_full else ANSWER_S
    try:
        code, _ = await trio.to_thread.run_sync(broker.get, "/health", limit_s)
    except OSError as error:
        return Finding(False, f"no answer: {error}")
    return Finding(code == 200, f"{code} after {1_000 * (time.monotonic() - began_s):.0f} ms")


async def stopped_http(size: Size) -> Finding:
    """The control: a broker that is stopped."""
    async with victim(size.folder) as broker:
        broker.stop()
        return await health(broker, Size(size.folder))


# --- a web page ----------------------------------------------------------------------------------


async def web_page(size: Size) -> Finding:
    """Requests that a web page can make a browser send: with its own host name, without our
    header."""
    return await ask_as_a_page(size, STRANGE, None)


async def this_machine(size: Size) -> Finding:
    """The control: the same requests by a permitted client."""
    return await ask_as_a_page(size, "localhost", OURS)


async def ask_as_a_page(size: Size, host: str, header: str | None) -> Finding:
    copy = size.folder / "copy"
    async with victim(size.folder, store="rocks") as broker:

        def ask() -> tuple[set[int], int]:
            read = {request(broker, f"GET {path}", host) for path in PATHS}
            return read, post_backup(broker, str(copy), header)

        read, backup = await trio.to_thread.run_sync(ask)
    holds = read == {421} and backup == 403 and not copy.exists()
    return Finding(holds, f"reads {sorted(read)}, a backup {backup}, made: {copy.exists()}")


# --- backups -------------------------------------------------------------------------------------


async def backups(size: Size) -> Finding:
    """Folders that are none, the store's own, and a copy right after another one."""
    odd: list[Any] = ["\ud800", "x" * 5_000, "relative", "/proc/x", "/\0", None, [[]], {}]
    own = str(size.folder / "data" / "copy")
    at_once = {"http": {"backup_interval_s": 0}}
    async with victim(size.folder, at_once, store="rocks") as broker:
        odd_codes = [await ask_backup(broker, folder) for folder in odd]
        own_code = await ask_backup(broker, own)
        found = await serves(broker)
    again = await two_in_a_row(size, "second")
    refused = all(400 <= code < 500 for code in odd_codes) and own_code == 409
    said = f"odd ones {odd_codes}, into the store {own_code}, {found.said}, {again.said}"
    return Finding(found.holds and refused and again.holds, said)


async def two_in_a_row(size: Size, folder: str, **settings: float) -> Finding:
    """Copies, the second at once after the first; it has to be refused."""
    size.folder.joinpath(folder).mkdir()
    async with victim(size.folder / folder, {"http": settings}, store="rocks") as broker:
        codes = [await ask_backup(broker, str(size.folder / f"{folder}{n}")) for n in (1, 2)]
    return Finding(codes == [200, 429], f"two in a row {codes}")


async def unlimited_backups(size: Size) -> Finding:
    """The control: two backups in a row, without a required pause."""
    return await two_in_a_row(size, "unlimited", backup_interval_s=0)


async def ask_backup(broker: Victim, folder: Any) -> int:
    return await trio.to_thread.run_sync(post_backup, broker, folder)


# --- requests ------------------------------------------------------------------------------------


def post_backup(broker: Victim, folder: Any, header: str | None = OURS) -> int:
    """The status code; blocks."""
    return request(broker, "POST /backup", HOST, header, json.dumps({"folder": folder}).encode())


def request(
    broker: Victim, what: str, host: str, header: str | None = None, body: bytes = b""
) -> int:
    """The status code of `GET /path`; blocks."""
    lines = [f"{what} HTTP/1.1", f"Host: {host}:{door(broker)[1]}"]
    lines += [] if header is None else [header]
    lines += ["Content-Type: application/json", f"Content-Length: {len(body)}", "", ""]
    with socket.create_connection(door(broker), timeout=ANSWER_S) as sock:
        sock.sendall("\r\n".join(lines).encode() + body)
        return int(sock.recv(4_096).split()[1])


def door(broker: Victim) -> tuple[str, int]:
    return HOST, int(broker.http.rpartition(":")[2])


ATTACKS = [
    Attack(
        "slow-http",
        f"40 slow clients of HTTP keep /health waiting no longer than {HEALTH_S} s",
        slow_http,
        stopped_http,
    ),
    Attack(
        "web-page",
        "a page under a name of its own reads nothing (421) and makes no backup (403)",
        web_page,
        this_machine,
    ),
    Attack(
        "backups",
        "odd folders are refused, the store's own with 409, a second copy at once with 429",
        backups,
        unlimited_backups,
    ),
]
