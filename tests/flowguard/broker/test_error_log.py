"""A storm of errors is a few tracebacks and a count."""

from structlog.testing import capture_logs

from flowguard.broker.error_log import SHOWN_MAX, ErrorLog


def test_few_are_shown_and_all_are_counted() -> None:
    errors = ErrorLog("connection failed")
    with capture_logs() as lines:
        for number in range(1_000):
            errors(KeyError("hook") if number % 4 else RuntimeError("bug"))
        errors.flush()
    *shown, counted = lines
    assert [line["event"] for line in shown] == ["connection failed"] * SHOWN_MAX
    assert all("exc_info" in line for line in shown)
    assert counted["event"] == "connection failed, not shown"
    assert counted["count"] == 1_000 - SHOWN_MAX
    assert counted["kind_KeyError"] + counted["kind_RuntimeError"] == counted["count"]


def test_each_interval_shows_some_again() -> None:
    errors = ErrorLog("connection failed")
    with capture_logs() as lines:
        for _ in range(3):
            for _ in range(SHOWN_MAX):
                errors(ValueError())
            errors.flush()
    assert len(lines) == 3 * SHOWN_MAX


def test_an_interval_without_errors_says_nothing() -> None:
    errors = ErrorLog("connection failed")
    with capture_logs() as lines:
        errors.flush()
    assert lines == []
