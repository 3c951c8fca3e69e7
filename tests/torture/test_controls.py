"""Controls: a store that breaks one promise is found out, or the harness proves nothing."""

from pathlib import Path

import pytest

from tests.torture.run import CONTROL_PATIENCE_S, Torture

KILLS_MAX = 60
ROUNDS_MAX = 10


@pytest.mark.once
@pytest.mark.slow
@pytest.mark.parametrize(
    ("store", "expected"),
    [
        pytest.param("late", "lost", id="acknowledged before written"),
        pytest.param("late-rocks", "was acknowledged and is lost", id="the same over RocksDB"),
        pytest.param("no-inbound", "came twice, at QoS 2", id="forgets PUBLISH ids"),
        pytest.param("no-release", "came twice, at QoS 2", id="forgets PUBREC"),
        pytest.param("all-inbound", "was acknowledged and is lost", id="forgets PUBREL"),
        pytest.param("no-place", "was acknowledged and is lost", id="forgets places in the log"),
        pytest.param("disorderly", "came out of order", id="mixes messages up"),
    ],
)
def test_a_store_that_breaks_its_promise_is_found_out(
    store: str, expected: str, tmp_path: Path
) -> None:
    """Some run does: a kill hits by chance, and on a starved machine seldom."""
    for seed in range(ROUNDS_MAX):
        folder = tmp_path / str(seed)
        folder.mkdir()
        torture = Torture(
            folder, kills=KILLS_MAX, seed=seed, store=store, patience_s=CONTROL_PATIENCE_S
        )
        verdict = torture.run()
        print(verdict)
        if any(expected in finding for finding in verdict.findings):
            return
    pytest.fail(f"{ROUNDS_MAX} runs, and nothing {expected}: at last {verdict.findings[:50]}")
