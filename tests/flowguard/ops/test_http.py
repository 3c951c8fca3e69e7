"""The HTTP port beside a real broker: what it answers, and what it never does to the broker."""

import json
from base64 import b64encode
from functools import partial
from urllib.parse import quote

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families as parse
from structlog.testing import capture_logs

from flowguard.broker.server import unix_clock
from flowguard.node.connect.accept_state import Rest
from flowguard.ops import view
from flowguard.ops.web import http_connection
from flowguard.ops.web.hosts import is_ours
from flowguard.ops.web.http import (
    listen,
    serve_http,
)
from tests.support.http import CHANGES, Address, head, parts, read_all, request, send, watched
from tests.support.real import (
    TEST_S,
    SlowStore,
    broker,
    connect,
    offline_subscriber,
    publishes,
    until,
)


async def test_metrics_are_what_prometheus_parses() -> None:
    async with watched() as (running, address):
        client = await connect(running, "c")
        code, body = await request(address, "GET /metrics")
        await client.close()
    assert code == 200
    values = {family.name: family.samples[0].value for family in parse(body) if family.samples}
    assert values["flowguard_clients_connected"] == 1
    assert values["flowguard_memory_resident_bytes"] > 0


async def test_the_status_is_json() -> None:
    async with watched({"flow": {"window_max": 40}}) as (running, address):
        client = await connect(running, "c")
        code, body = await request(address, "GET /status")
        await client.close()
    status = json.loads(body)
    assert code == 200
    assert status["clients"]["connected"] == 1
    assert status["window"]["limit_max"] == 40
    assert 0 < status["memory"]["resident_bytes"] < status["memory"]["limit_bytes"]


@pytest.mark.parametrize("client_id", ["c", "a/b", "a b", "100%", "Zürich", "?x=#1"])
async def test_a_client_is_explained_whatever_its_name(client_id: str) -> None:
    async with watched() as (running, address):
        client = await connect(running, client_id)
        code, body = await request(address, f"GET /explain/{quote(client_id, safe='')}")
        await client.close()
    assert code == 200
    assert json.loads(body)["client_id"] == client_id


async def test_an_unknown_client_is_404() -> None:
    async with watched() as (_, address):
        code, body = await request(address, "GET /explain/nobody")
    assert code == 404
    assert "error" in json.loads(body)


@pytest.mark.parametrize(
    ("text", "expected"), [("GET /other", 404), ("POST /status", 405), ("POST /", 405)]
)
async def test_other_requests_are_told_what_there_is(text: str, expected: int) -> None:
    async with watched() as (_, address):
        code, body = await request(address, text)
    assert code == expected
    assert "/metrics" in json.loads(body)["error"]


@pytest.mark.parametrize(("more", "expected"), [(-1, 200), (0, 200), (1, 431), (2_600, 431)])
async def test_a_header_has_as_many_bytes_as_it_may_and_none_more(more: int, expected: int) -> None:
    before, after = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ", b"\r\n\r\n"
    length = http_connection.HEADER_BYTES_MAX + more - len(before) - len(after)
    async with watched() as (_, address):
        stream = await trio.open_tcp_stream(*address)
        await stream.send_all(before + b"x" * length + after)
        assert parts(await read_all(stream))[0] == expected


async def test_a_draining_broker_is_alive_and_not_ready() -> None:
    async with watched() as (running, address):
        assert await request(address, "GET /ready") == (200, "ready\n")
        running.node.drain(0.0)
        assert await request(address, "GET /ready") == (503, "not ready: draining\n")
        assert await request(address, "GET /health") == (200, "alive\n")


async def test_a_broker_without_descriptors_is_not_ready() -> None:
    async with watched() as (running, address):
        said = ""
        with trio.fail_after(TEST_S):
            while "descriptors" not in said:  # The rest ends after a while.
                running.node.door.rest(Rest.DESCRIPTORS)
                code, said = await request(address, "GET /ready")
    assert (code, said) == (503, "not ready: all descriptors are in use\n")


async def test_browsers_that_want_an_icon_get_none_without_an_error() -> None:
    async with watched() as (_, address):
        assert await request(address, "GET /favicon.ico") == (204, "")


async def test_a_pause_is_explained() -> None:
    store = SlowStore()
    async with watched({"flow": {"window_max": 2}}, store=store, calm=True) as (running, address):
        await offline_subscriber(running, "t")
        publisher = await connect(running, "p")
        store.open.clear()
        await publisher.send(*publishes("t", 5))
        await until(lambda: running.node.guard.window.in_process == 2)
        _, body = await request(address, "GET /explain/p")
        store.open.set()
        await publisher.close()
    (pause,) = json.loads(body)["paused"]
    assert pause["reason"] == "window"


# --- for whom ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/metrics", "/status", "/explain/c", "/health", "/other"])
async def test_a_name_that_is_not_ours_is_told_nothing(path: str) -> None:
    """A web page can have a name that leads to 127.0.0.1: to the browser it is of our origin."""
    settings = {"http": {"names": ["Broker.example."]}}
    async with watched(settings) as (running, address):
        client = await connect(running, "c")
        stream = await send(address, head(f"GET {path}", host=f"evil.example:{address[1]}"))
        code, _, said = parts(await read_all(stream))
        assert code == 421
        assert list(json.loads(said)) == ["error"]
        assert "evil.example" in said
        assert "http.names" in said
        stream = await send(address, head("GET /health", host="broker.example"))
        assert parts(await read_all(stream))[0] == 200
        await client.close()


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.0.0.1:9883", True),
        ("192.0.2.7:9883", True),
        ("[::1]", True),
        ("[::1]:9883", True),
        ("[fe80::1%25eth0]:9883", True),
        ("localhost", True),
        ("LOCALHOST.:9883", True),
        ("broker.example:1", True),
        (None, True),
        ("", False),
        (":9883", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("evil.example:127.0.0.1", False),
        ("[evil.example]", False),
        ("[localhost]", False),
        ("127.0.0.1, evil.example", False),
        ("evil@127.0.0.1", False),
        ("127.0.0.1:99:99", False),
        ("broker.example.evil.example", False),
    ],
)
def test_by_which_names_the_port_may_be_asked(host: str | None, expected: bool) -> None:
    assert is_ours(host, {"broker.example"}) is expected


@given(
    name=st.text(alphabet=st.characters(codec="ascii", exclude_characters=":[]")),
    port=st.text("0123456789"),
)
def test_what_is_no_address_and_not_listed_is_not_ours(name: str, port: str) -> None:
    """For any name that a resolver may know: a dotted name ends in letters."""
    for host in (f"{name}x.example", f"{name}x.example:{port}", f"[{name}x.example]"):
        assert not is_ours(host, {"broker.example"})


@pytest.mark.parametrize(
    ("headers", "paths", "expected"),
    [
        ((), ["/", "/status"], 200),
        (("Origin: http://localhost",), ["/", "/status"], 200),
        (("Origin: http://localhost:1",), ["/", "/status", "/health", "/events"], 403),
        (("Origin: null",), ["/", "/metrics"], 403),
        (("Sec-Fetch-Site: same-origin",), ["/status", "/explain/c"], 200),
        (("Sec-Fetch-Site: none", "Sec-Fetch-Mode: navigate"), ["/", "/status"], 200),
        (("Sec-Fetch-Site: same-site",), ["/", "/status", "/metrics", "/events"], 403),
        (("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors"), ["/", "/status"], 403),
        (
            ("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate"),
            ["/status", "/explain/c"],
            403,
        ),
        (("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate"), ["/"], 200),
    ],
)
async def test_a_page_of_another_origin_gets_nothing_but_a_link_may_be_followed(
    headers: tuple[str, ...], paths: list[str], expected: int
) -> None:
    async with watched() as (running, address):
        client = await connect(running, "c")
        for path in paths:
            assert (await request(address, f"GET {path}", *headers))[0] == expected, path
        await client.close()


TOKEN = b"0123456789abcdef"
BASIC = f"Authorization: Basic {b64encode(b'me:' + TOKEN).decode()}"
ELSEWHERE = "X-Forwarded-For: 192.0.2.9"


@pytest.mark.parametrize(
    ("token", "headers", "path", "expected"),
    [
        (None, (), "/", 200),
        (None, (ELSEWHERE,), "/", 403),
        (None, (ELSEWHERE,), "/events", 403),
        (None, (ELSEWHERE,), "/metrics", 200),
        (TOKEN, (), "/status", 200),
        (TOKEN, (ELSEWHERE,), "/health", 200),
        (TOKEN, (ELSEWHERE,), "/ready", 200),
        (TOKEN, (ELSEWHERE,), "/", 401),
        (TOKEN, (ELSEWHERE,), "/events", 401),
        (TOKEN, (ELSEWHERE,), "/explain/c", 401),
        (TOKEN, (ELSEWHERE,), "/metrics", 401),
        (TOKEN, (ELSEWHERE, "Authorization: Bearer 0123456789abcdee"), "/", 401),
        (TOKEN, (ELSEWHERE, "Authorization: Bearer "), "/", 401),
        (TOKEN, (ELSEWHERE, "Authorization: Basic !"), "/", 401),
        (TOKEN, (ELSEWHERE, "Authorization: Basic é"), "/", 401),
        (TOKEN, (ELSEWHERE, "Authorization: Digest x"), "/", 401),
        (TOKEN, (ELSEWHERE, "Authorization: Bearer 0123456789abcdef"), "/metrics", 200),
        (TOKEN, (ELSEWHERE, BASIC), "/", 200),
    ],
)
async def test_other_machines_say_the_token_and_without_one_they_see_no_page(
    token: bytes | None, headers: tuple[str, ...], path: str, expected: int
) -> None:
    async with broker() as running, trio.open_nursery() as nursery:
        serve = partial(serve_http, token=token)
        seen = (running.node, unix_clock(), listen("127.0.0.1", 0), running.backup)
        address: Address = await nursery.start(serve, *seen)
        stream = await send(address, head(f"GET {path}", *headers))
        code, answered, said = parts(await read_all(stream))
        nursery.cancel_scope.cancel()
    assert code == expected
    assert ("www-authenticate" in answered) is (expected == 401)
    assert TOKEN.decode() not in said


# --- bounds ------------------------------------------------------------------------------------


async def test_bodies_are_not_read() -> None:
    async with watched() as (_, address):
        top = head("GET /health", "Content-Length: 1000000000000")
        assert parts(await read_all(await send(address, top + bytes(10_000))))[0] == 200


async def test_a_header_without_end_is_refused() -> None:
    async with watched() as (_, address):
        stream = await send(address, b"GET /health HTTP/1.1\r\nX: " + b"x" * 100_000)
        assert parts(await read_all(stream))[0] == 431
        assert (await request(address, "GET /health"))[0] == 200


async def test_nothing_is_upgraded_and_nothing_follows() -> None:
    async with watched() as (running, address):
        for asked in (
            head("GET /health") + head("GET /status"),
            head("GET /health", "Connection: keep-alive"),
            head("GET /health", "Upgrade: websocket", "Connection: Upgrade"),
            head("GET /health", "Upgrade: h2c", "Connection: Upgrade, HTTP2-Settings"),
        ):
            answer = await read_all(await send(address, asked))
            assert answer.endswith(b"alive\n")
            assert answer.count(b"HTTP/1.1") == 1
        for nonsense in (b"\x00\xff\x10MQTT", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(100)):
            assert parts(await read_all(await send(address, nonsense)))[0] in (400, 404)
        client = await connect(running, "c")
        await client.ping()
        await client.close()


async def test_a_head_has_no_body_and_a_peer_that_waits_is_told_to_go_on() -> None:
    async with watched() as (_, address):
        code, headers, said = parts(await read_all(await send(address, head("HEAD /health"))))
        assert (code, headers["content-length"], said) == (200, "6", "")
        top = head("POST /backup", CHANGES, "Content-Length: 2", "Expect: 100-continue")
        stream = await send(address, top)
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 100")
        await stream.send_all(b"{}")
        assert parts(await read_all(stream))[0] == 400


async def test_a_body_without_end_is_refused() -> None:
    async with watched() as (_, address):
        top = head("POST /backup", CHANGES, "Content-Length: 1000000")
        code, _, said = parts(await read_all(await send(address, top + bytes(20_000))))
        assert code == 413
        assert "bytes" in said


METHODS = st.sampled_from(["GET", "HEAD", "POST", "PUT", "OPTIONS", "CONNECT", "", "get", "\x00"])
TARGETS = st.sampled_from(
    ["/health", "/status", "/metrics", "/explain/%ff", "/explain/", "/backup", "*", "//", "/%00"]
) | st.text(max_size=20)
HEADERS = st.sampled_from(
    [
        "Host: localhost",
        "Host: localhost",
        "Host: evil.example",
        "host:\xff",
        CHANGES,
        CHANGES,
        "Content-Length: 5",
        "Content-Length: -1",
        "Content-Length: 99999999999999999999",
        "Transfer-Encoding: chunked",
        "Transfer-Encoding: gzip",
        "Expect: 100-continue",
        "Connection: close, x",
        "Upgrade: h2c",
        "Accept: application/openmetrics-text; version=1.0.0",
        "Accept: \xff;;;=",
        "X-Forwarded-For: x",
        " folded",
        ":",
    ]
) | st.text(max_size=20)
BODIES = st.sampled_from(
    [b"", b"{}", b"[" * 9_000, b"5\r\n[[[[[\r\n0\r\n\r\n", b"zz\r\n"]
) | st.binary(max_size=20)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """Something like HTTP: each part of it may be wrong, and it may end anywhere."""
    version = draw(st.sampled_from(["HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/2.0", ""]))
    lines = [f"{draw(METHODS)} {draw(TARGETS)} {version}", *draw(st.lists(HEADERS, max_size=6))]
    data = "\r\n".join([*lines, "", ""]).encode("utf-8", "replace") + draw(BODIES)
    return data[: draw(st.integers(0, len(data)) | st.just(len(data)))]


@given(inputs=st.lists(st.binary(max_size=100) | requests(), min_size=1, max_size=20))
async def test_whatever_is_asked_the_answer_is_a_line_and_no_traceback(inputs: list[bytes]) -> None:
    with capture_logs() as lines:
        async with watched() as (_, address):
            for data in inputs:
                stream = await send(address, data)
                await stream.send_eof()
                answer = await read_all(stream)
                if not answer:
                    assert not data
                    continue
                code, _, said = parts(answer.removeprefix(b"HTTP/1.1 100 \r\n\r\n"))
                assert code in (200, 501) or 400 <= code < 500
                if code >= 400 and said:
                    assert "\n" not in said
                    assert list(json.loads(said)) == ["error"]
    assert [line for line in lines if line["event"] == "http request failed"] == []


async def test_an_error_of_ours_is_500_and_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(view, "explain", broken)
    with capture_logs() as lines:
        async with watched() as (_, address):
            code, body = await request(address, "GET /explain/c")
            assert (await request(address, "GET /health"))[0] == 200
    assert code == 500
    assert "on purpose" not in body
    (line,) = [line for line in lines if line["event"] == "http request failed"]
    assert "on purpose" in str(line["exc_info"])
