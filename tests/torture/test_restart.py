"""A killed broker with a long backlog is back soon; how soon, `make torture` judges."""

from pathlib import Path

import pytest

from tests.support.patience import HANG_S
from tests.torture.restart import BACKLOGS, measure


@pytest.mark.slow
@pytest.mark.parametrize(("sessions", "messages"), BACKLOGS)
def test_a_hundred_thousand_queued_messages_survive(
    sessions: int, messages: int, tmp_path: Path
) -> None:
    restart = measure(tmp_path, sessions, messages)
    print(restart)
    assert restart.serving_s < HANG_S
