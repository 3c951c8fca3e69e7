"""Two journals that are one: what is for applications is counted, held and answered by itself."""

from flowguard.flow import NodeWindow, Observer
from flowguard.node.applications.divided_journal import DividedJournal
from flowguard.node.journal import DELIVERIES_MAX, Journal
from flowguard.records import DropSession, PutInbound, PutSession, Release, StoreOp

LARGE = 10**9
APP = PutSession("app", 60, None, is_application=True)


def made() -> DividedJournal:
    return DividedJournal(ops_max=LARGE, bytes_max=LARGE, window=NodeWindow(), observer=Observer())


def commit(journal: Journal) -> list[StoreOp] | None:
    """Commit and answer the next batch. Return its operations, or None if there is none."""
    batch = journal.take(0.0)
    if batch is None:
        return None
    journal.durable(batch, 0.0, 0.0)
    while journal.is_answering:
        journal.answer(1, 0.0)
    return batch.ops


def nothing(_: float) -> None:
    pass


def test_a_reader_of_applications_is_counted_where_it_waits() -> None:
    journal = made()
    journal.append([APP], nothing, 0.0)
    journal.append_for_reader([Release("app", 1, 1, None)], nothing, 0.0)
    journal.append([PutInbound("d", 1)], nothing, 0.0)
    first, second = journal.take(0.0), journal.second.take(0.0)
    assert first is not None
    assert second is not None
    assert (len(first.continuations), first.readers_count) == (1, 0)
    assert (len(second.continuations), second.readers_count) == (2, 1)


def test_many_deliveries_are_told_alone_in_the_journal_where_they_wait() -> None:
    journal = made()
    told: list[str] = []
    release = Release("app", 1, 1, None)
    journal.append([APP], lambda _: told.append("session"), 0.0)
    journal.append_heavy([release], lambda _: told.append("heavy"), DELIVERIES_MAX, 0.0)
    journal.append_heavy([release], lambda _: told.append("heavier"), DELIVERIES_MAX + 1, 0.0)
    journal.append_heavy([PutInbound("d", 1)], lambda _: told.append("device"), 1, 0.0)
    assert commit(journal) == [PutInbound("d", 1)]
    assert told == ["device"]
    batch = journal.second.take(0.0)
    assert batch is not None
    assert batch.ops == [APP, release, release]
    journal.second.durable(batch, 0.0, 0.0)
    journal.answer(64, 0.0)
    assert told == ["device", "session", "heavy"]
    journal.answer(64, 0.0)
    assert told == ["device", "session", "heavy", "heavier"]


def test_who_comes_to_the_second_one_waits_until_all_have_heard_of_what_was_before() -> None:
    journal = made()
    before = PutInbound("app", 1)
    journal.append([before], nothing, 0.0)
    journal.append([before], nothing, 0.0)
    journal.append([APP], nothing, 0.0)
    assert commit(journal.second) is None
    batch = journal.take(0.0)
    assert batch is not None
    journal.durable(batch, 0.0, 0.0)
    journal.answer(1, 0.0)
    assert commit(journal.second) is None, "one has not heard"
    journal.answer(1, 0.0)
    assert commit(journal.second) == [APP]
    journal.note(PutInbound("d", 1))
    journal.append([Release("app", 1, 1, None)], nothing, 0.0)
    assert commit(journal.second) == [Release("app", 1, 1, None)], "only once"


def test_it_is_idle_and_done_only_if_both_are_and_answers_for_both() -> None:
    journal = made()
    journal.append([APP], nothing, 0.0)
    assert not journal.is_idle
    assert not journal.is_done
    assert journal.is_empty
    assert journal.wants_store
    batch = journal.second.take(0.0)
    assert batch is not None
    assert not journal.wants_store, "one batch at a time"
    journal.second.durable(batch, 0.0, 0.0)
    assert journal.has_answers
    journal.answer(1, 0.0)
    assert not journal.has_answers
    assert journal.is_idle
    assert journal.is_done


def test_a_session_of_an_application_is_ending_until_the_second_one_has_its_end() -> None:
    journal = made()
    journal.note(APP)
    commit(journal.second)
    journal.end_session("app")
    assert journal.is_ending("app")
    assert commit(journal.second) is None, "the end of its will is in the first one"
    commit(journal)
    assert journal.is_ending("app")
    assert commit(journal.second) == [DropSession("app")]
    assert not journal.is_ending("app")
