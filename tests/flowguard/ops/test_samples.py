"""The data of the page: one sampler for all viewers, bounded in everything."""

import json
from typing import Any

import pytest
import trio

from flowguard.flow.load.histogram import Histogram
from flowguard.ops import talkers
from flowguard.ops.latency import LOOKS, RecentLatency
from flowguard.ops.samples import HISTORY_MAX, OLDER_EACH, OLDER_MAX, SAMPLE_S, Sampler
from flowguard.ops.talkers import SHOWN, Talkers, traffic_of
from flowguard.ops.view import View
from flowguard.ops.web import http_connection
from flowguard.ops.web.http import CONNECTIONS_MAX
from flowguard.ops.web.http_connection import HttpConnection
from flowguard.ops.web.viewers import VIEWERS_MAX
from tests.support.http import Address, head, parts, read_all, request, send, watched
from tests.support.real import TEST_S, connect, until
from tests.support.stage import Stage

WATCH = head("GET /events")


def sampler_of(stage: Stage) -> Sampler:
    def raised(error: BaseException) -> None:
        raise error

    return Sampler(View(stage.node, lambda: stage.now_s, lambda: None), raised)


class Viewer:
    """One who watches: the events that have come, as name and data."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._data = b""

    @classmethod
    async def at(cls, address: Address) -> "Viewer":
        return cls(await send(address, WATCH))

    async def next(self) -> tuple[str, Any]:
        with trio.fail_after(TEST_S):
            while b"\n\n\r\n" not in self._data:
                received = await self.stream.receive_some(65_536)
                assert received, self._data
                self._data += bytes(received)
        event, _, self._data = self._data.partition(b"\n\n\r\n")
        _, _, named = event.partition(b"event: ")
        name, _, data = named.partition(b"\ndata: ")
        return name.decode(), json.loads(data)


async def test_who_watches_gets_the_history_and_then_sample_after_sample() -> None:
    async with watched() as (running, address):
        client = await connect(running, "c")
        viewer = await Viewer.at(address)
        name, history = await viewer.next()
        assert name == "history"
        assert history["fields"][0] == "at_s"
        for _ in range(2):
            name, sample = await viewer.next()
            assert name == "sample"
            assert sample["condition"] in sample["sentence"]
            assert sample["status"]["clients"]["connected"] == 1
            assert len(sample["point"]) == len(history["fields"])
        await viewer.stream.aclose()
        await client.close()


async def test_any_number_of_viewers_costs_one_sample_and_without_them_none_is_made() -> None:
    stage = Stage()
    sampler = sampler_of(stage)
    sampler.take()
    assert (sampler.number, sampler.encoded) == (1, 0)
    for _ in range(VIEWERS_MAX):
        sampler.join()
    sampler.take()
    assert (sampler.number, sampler.encoded) == (2, 1)
    events = [await sampler.event_after(0) for _ in range(VIEWERS_MAX)]
    assert len({id(event) for _, event in events}) == 1


async def test_who_is_slow_misses_samples_and_nothing_is_kept_for_it() -> None:
    sampler = sampler_of(Stage())
    sampler.join()
    for _ in range(50):
        sampler.take()
    number, newest = await sampler.event_after(3)
    assert number == 50
    assert (await sampler.event_after(49))[1] is newest


def test_the_history_is_bounded() -> None:
    stage = Stage()
    sampler = sampler_of(stage)
    for _ in range(HISTORY_MAX + OLDER_EACH * (OLDER_MAX + 2)):
        stage.now_s += SAMPLE_S
        stage.now_s += 1
        sampler.take()
    told = json.loads(sampler.history_event().partition(b"data: ")[2])
    times = [point[0] for point in told["points"]]
    assert len(times) == HISTORY_MAX + OLDER_MAX
    assert times == sorted(set(times))
    assert times[-1] - times[0] >= 3_590
    assert told["points"][-1][0] == stage.now_s


@pytest.fixture
def samplers(monkeypatch: pytest.MonkeyPatch) -> list[Sampler]:
    """Return the samplers that have, or had, a viewer."""
    found: list[Sampler] = []
    join = Sampler.join

    def joined(sampler: Sampler) -> None:
        join(sampler)
        found.append(sampler)

    monkeypatch.setattr(Sampler, "join", joined)
    return found


async def test_viewers_have_places_of_their_own_and_these_are_capped(
    samplers: list[Sampler],
) -> None:
    async with watched() as (_, address):
        viewers = [await Viewer.at(address) for _ in range(VIEWERS_MAX)]
        for viewer in viewers:
            assert (await viewer.next())[0] == "history"
        code, headers, said = parts(await read_all(await send(address, WATCH)))
        assert (code, headers["retry-after"]) == (503, "10")
        assert "watch already" in said
        assert (await request(address, "GET /status"))[0] == 200
        for viewer in viewers:
            await viewer.stream.aclose()
        await until(lambda: samplers[0].viewers == 0)
        late = await Viewer.at(address)
        assert (await late.next())[0] == "history"
        await late.stream.aclose()


async def test_who_finds_no_place_to_watch_counts_as_any_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flowguard.ops.web.viewers.VIEWERS_MAX", 0)
    seen: list[HttpConnection] = []
    begin = HttpConnection.__init__

    def begun(connection: HttpConnection, *arguments: Any) -> None:
        begin(connection, *arguments)
        seen.append(connection)

    monkeypatch.setattr(HttpConnection, "__init__", begun)
    async with watched() as (_, address):
        streams = [await send(address, WATCH) for _ in range(3 * CONNECTIONS_MAX)]
        for stream in streams:
            assert parts(await stream.receive_some(1_000))[0] == 503
        await until(lambda: len(seen) == len(streams))
        assert sum(each._stream.socket.fileno() >= 0 for each in seen) <= CONNECTIONS_MAX
        for stream in streams:
            await stream.aclose()


async def test_a_viewer_that_takes_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, samplers: list[Sampler]
) -> None:
    monkeypatch.setattr(http_connection, "ANSWER_S", 0.2)
    monkeypatch.setattr(Sampler, "history_event", lambda _: bytes(64 * 2**20))
    async with watched() as (_, address):
        stream = await send(address, WATCH)
        await until(lambda: len(samplers) == 1)
        await until(lambda: samplers[0].viewers == 0)
        await stream.aclose()


async def test_a_stream_of_events_is_for_get_only() -> None:
    async with watched() as (_, address):
        assert (await request(address, "POST /events"))[0] == 405


async def test_an_error_costs_one_sample(autojump_clock: trio.testing.MockClock) -> None:
    stage, errors = Stage(), list[BaseException]()
    sampler = Sampler(View(stage.node, lambda: stage.now_s, lambda: 1 / 0), errors.append)
    with trio.move_on_after(2.5):
        await sampler.run()
    assert [type(error) for error in errors] == [ZeroDivisionError] * 3


# --- talkers and latencies ---------------------------------------------------------------------


def test_the_loudest_come_first_with_bytes_per_second_both_ways() -> None:
    stage = Stage()
    clients = {name: stage.connect(name) for name in ("a", "b", "c")}
    clients["c"].subscribe("t")
    seen = Talkers(stage.node.registry.sessions, traffic_of)
    seen.look(stage.now_s)
    clients["a"].publish("t", bytes(1_000))
    clients["b"].publish("t", bytes(3_000))
    seen.look(stage.now_s + 2)
    loud = {one["client_id"]: one for one in seen.talkers()}
    assert list(loud) == ["c", "b", "a"]
    assert loud["b"]["received_bytes_per_s"] == pytest.approx(1_500, abs=10)
    assert loud["c"]["sent_bytes_per_s"] == pytest.approx(2_000, abs=20)
    seen.look(stage.now_s + 3)
    assert seen.talkers() == []


def test_the_longest_queues_are_shown_until_their_session_ends() -> None:
    stage = Stage()
    for name in ("away", "off"):
        client = stage.connect_durable(name)
        client.subscribe("t", "only-off" if name == "off" else "u", qos=1)
        client.close()
    publisher = stage.connect("p")
    for topic in ("t", "only-off", "only-off"):
        publisher.publish(topic, b"x", qos=1)
    seen = Talkers(stage.node.registry.sessions, traffic_of)
    for later in (0, 1):
        seen.look(stage.now_s + later)
    assert [(one["client_id"], one["messages"]) for one in seen.queues()] == [
        ("off", 3),
        ("away", 1),
    ]


def test_a_look_sees_no_more_than_its_bound_and_comes_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(talkers, "LOOKS_MAX", 10)
    stage = Stage()
    clients = [stage.connect(f"c{number}") for number in range(35)]
    seen = Talkers(stage.node.registry.sessions, traffic_of)
    for second in range(1, 9):  # Twice round, and once more for what was noted last.
        seen.look(stage.now_s + second)
        assert len(seen._noted) <= 10
        for number, client in enumerate(clients):
            client.publish("t", bytes(100 * number))
    assert len(seen.talkers()) == SHOWN
    assert {one["client_id"] for one in seen.talkers()} == {f"c{n}" for n in range(27, 35)}


def test_a_latency_is_that_of_the_last_looks() -> None:
    histogram = Histogram((0.001, 0.01, 0.1))
    latency = RecentLatency(histogram)
    assert latency.look() == {"count": 0, "p50_s": None, "p99_s": None}
    histogram.observe(0.0005, 90)
    histogram.observe(7.0, 10)
    assert latency.look() == {"count": 100, "p50_s": 0.001, "p99_s": 0.1}
    for _ in range(LOOKS):
        latency.look()
    assert latency.look()["count"] == 0


async def test_the_port_samples_while_nobody_looks() -> None:
    """A viewer that opens the page after the trouble still sees it."""
    async with watched() as (_, address):
        for _ in range(2):
            viewer = await Viewer.at(address)
            _, history = await viewer.next()
            await viewer.stream.aclose()
            assert history["points"]
