"""The log on standard error: what it never shows, and what it shows few times."""

import gc
from collections.abc import Iterator

import pytest
import structlog
import trio
import trio.testing
from structlog.testing import capture_logs

from flowguard.broker.logs.error_log import SHOWN_MAX
from flowguard.broker.logs.output_lines import STDERR
from flowguard.cli.log_lines import log_ignored, log_to_stderr
from flowguard.config import LogSettings

log = structlog.get_logger()


@pytest.fixture(autouse=True)
def other_configuration() -> Iterator[None]:
    """The log of other tests is as it was."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def logged_in(password: str) -> bool:
    raise ArithmeticError(len(password))


@pytest.mark.parametrize("form", ["human", "json"])
def test_a_traceback_shows_no_values(form: str, capfd: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(LogSettings.model_validate({"format": form}))
    try:
        logged_in("cor" + "rect horse")
    except ArithmeticError:
        log.error("failed", exc_info=True)
    STDERR.flush()
    said = capfd.readouterr().err
    assert "ArithmeticError: 13" in said
    assert "correct horse" not in said


class Sulking:
    """It raises an error at its end that has no receiver."""

    def __del__(self) -> None:
        raise ArithmeticError


async def test_an_error_that_nobody_can_be_told_is_logged_few_times(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(log_ignored)
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(SHOWN_MAX + 5):
                Sulking()
            gc.collect()
            nursery.cancel_scope.cancel()
    *shown, counted = logs
    assert [type(each["exc_info"]) for each in shown] == SHOWN_MAX * [ArithmeticError]
    assert counted["ArithmeticError"] == 5
    assert "ArithmeticError" not in capfd.readouterr().err
