"""A killed broker with a long backlog delivers it; `make torture` judges how soon, with five times
as many messages."""

from pathlib import Path

import pytest

from tests.support.patience import HANG_S
from tests.torture.restart import measure

BACKLOGS = ((1, 20_000), (200, 100))
"""Sessions, and messages queued for each."""


@pytest.mark.slow
@pytest.mark.parametrize(("sessions", "messages"), BACKLOGS)
def test_queued_messages_survive(sessions: int, messages: int, tmp_path: Path) -> None:
    restart = measure(tmp_path, sessions, messages)
    print(restart)
    assert restart.serving_s < HANG_S
