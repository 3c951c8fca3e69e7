"""Every part of the store's benchmark, short and real; and how it is judged."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from benchmarks import pages
from benchmarks.build import Unavailable, build
from benchmarks.conditions import QUICK_SECONDS, Conditions
from benchmarks.parts import PARTS, choose, of_bench, run
from benchmarks.peers import BROKERS
from benchmarks.store import drift, fetch, layouts, reconnect, restart
from benchmarks.store.filling import add_sessions, conversation, open_store
from benchmarks.store.layouts import Layouts, Spent
from benchmarks.verdicts import OURS
from flowguard.records import Append, Sent, Settle

SHORT = Conditions(None, seconds=QUICK_SECONDS)


def test_a_conversation_appends_sends_and_settles_every_message_once() -> None:
    batches = list(conversation(3, 20, batch=5))
    everything = [op for ops in batches for op in ops]
    appended = [(op.client_id, op.pos) for op in everything if isinstance(op, Append)]
    assert sorted(appended) == sorted(set(appended))
    assert [(op.client_id, op.pos) for op in everything if isinstance(op, Settle)] == appended
    sent = {op.client_id: op.pos for op in everything if isinstance(op, Sent)}
    assert sent == dict(appended)


def test_a_settled_conversation_leaves_nothing_in_the_store(tmp_path: Path) -> None:
    store = open_store(tmp_path / "data")
    add_sessions(store, 3)
    for ops in conversation(3, 20, batch=5):
        store.commit(ops)
    assert [record.unsettled_count for record in store.sessions()] == [0, 0, 0]
    store.close()


def test_engine_time_is_a_part_of_what_a_commit_takes() -> None:
    spent = layouts.measure_one(layouts.ON_TRIAL, 2_000)
    assert spent.engine_us > 0
    assert spent.python_us > 0


@pytest.mark.parametrize(
    ("engine_us", "passed"),
    [
        ({"window": 1.0, "status": 2.0}, True),
        ({"window": 1.1, "status": 2.0}, False),
        ({"window": 1.0}, None),
    ],
)
def test_a_layout_is_judged_by_engine_time_alone(
    engine_us: dict[str, float], passed: bool | None
) -> None:
    runs = {layout: [Spent(spent_us, 100.0, 0.0)] for layout, spent_us in engine_us.items()}
    (check,) = Layouts(1, runs).report().checks
    assert check.passed is passed


@pytest.mark.slow
def test_pages_are_fetched_complete_behind_a_history() -> None:
    latencies = fetch.measure_one(queues=7, settled=1_000, fetches=20)
    assert len(latencies.sorted_ms) == 20
    assert latencies.share_ms(0.5) <= latencies.share_ms(0.99) == latencies.sorted_ms[-1]


@pytest.mark.slow
def test_who_comes_back_gets_everything_in_order() -> None:
    delivered = reconnect.measure_one(BROKERS[OURS], SHORT, messages=1_200, payload_bytes=16)
    assert 0 < delivered.first_s < delivered.all_s


@pytest.mark.slow
@pytest.mark.parametrize("before", restart.SIGNALS)
def test_all_messages_are_there_after_a_restart(tmp_path: Path, before: str) -> None:
    folder = tmp_path / before
    restart.fill(folder, 10, restart.SIGNALS[before])
    assert restart.start_here(folder, 10 * restart.SESSIONS) > 0
    assert restart.start_process(BROKERS[OURS], folder, None) > 0


@pytest.mark.slow
def test_the_loop_says_how_late_it_is_while_rocksdb_compacts() -> None:
    try:
        build("loadgen")
    except Unavailable as error:
        pytest.skip(str(error))
    for seconds in (0.5, 4.0, 32.0):  # A busy machine may deliver nothing in the first of them.
        run = drift.measure_one(SHORT, "rocks", (10, 64), seconds, one_core=False)
        if run.messages_per_s:
            break
    assert run.late_ms
    assert run.messages_per_s > 0
    assert set(run.events) == {"flushes", "compactions"}
    others = replace(run, store="memory"), replace(run, one_core=True)
    report = drift.Drifts(seconds, (run, *others)).report()
    assert len(report.checks) == 4, "memory is there for comparison only"


@pytest.mark.slow
def test_a_part_is_shown_and_written_to_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "SETTLED", 100)
    for _ in range(2):
        measured, _ = run({fetch.KEY: fetch.measure}, SHORT, tmp_path)
        assert measured
    (page,) = tmp_path.iterdir()
    text = page.read_text()
    assert page.name == "store-fetch.md"
    assert text.startswith("# Store: a page after a commit\n")
    assert "| queues | settled before | p50 ms | p99 ms | max ms |" in text


def test_parts_are_chosen_by_how_their_names_begin() -> None:
    assert choose("store,proxy") == list(of_bench())
    assert choose("overload-e1,store-fetch") == ["overload-e1", "store-fetch"]
    assert choose("") == list(PARTS)
    with pytest.raises(typer.BadParameter, match="there is no part nothing"):
        choose("nothing")


def test_every_page_of_results_can_be_found_in_the_documentation() -> None:
    text = (pages.RESULTS.parents[1] / "docs" / "develop" / "benchmarks.md").read_text()
    linked = set(re.findall(r"benchmarks/results/([\w-]+)\.md", text))
    assert linked == {page.stem for page in pages.RESULTS.glob("*.md")}
    assert set(PARTS) <= linked
    assert len(text.splitlines()) <= 200
