"""A broker killed with SIGKILL whose applications have their queues in a real Kafka: nothing that
was acknowledged is lost, and nothing comes twice at QoS 2 but what docs/operate/kafka.md names.

Some of the clients are applications, the others devices, which are owed what they always are. A
broker is killed as in `tests.torture.test_kills`; `make torture ARGS="--store kafka"` goes on for
longer.
"""

from pathlib import Path

import pytest

from tests.support.kafka import shared_kafka
from tests.torture.cast import APPLICATIONS
from tests.torture.run import CONTROL_PATIENCE_S, Torture
from tests.torture.stores import KAFKA_FILE
from tests.torture.test_kills import SEED

KILLS = 8
CONTROL_KILLS = 40
ROUNDS_MAX = 5


def place(folder: Path, prefix: str) -> None:
    (folder / KAFKA_FILE).write_text(f"{shared_kafka().servers} torture-{prefix}")


@pytest.mark.long
def test_a_killed_broker_keeps_what_it_promised_to_applications(tmp_path: Path) -> None:
    place(tmp_path, "kills")
    verdict = Torture(tmp_path, kills=KILLS, seed=SEED, store="kafka").run()
    print(verdict)
    assert not verdict.findings, "\n".join([str(verdict), *verdict.findings[:50]])
    assert verdict.kills.total() == KILLS
    assert (tmp_path / "broker.log").read_text() == ""


@pytest.mark.once
@pytest.mark.slow
@pytest.mark.parametrize(
    ("store", "expected"),
    [
        pytest.param("late-kafka", "was acknowledged and is lost", id="acknowledged too early"),
        pytest.param("no-release-kafka", "came twice, at QoS 2", id="forgets PUBREC"),
    ],
)
def test_who_breaks_a_promise_to_applications_is_found_out(
    store: str, expected: str, tmp_path: Path
) -> None:
    for seed in range(ROUNDS_MAX):
        folder = tmp_path / str(seed)
        folder.mkdir()
        place(folder, f"{store}-{seed}")
        torture = Torture(
            folder, kills=CONTROL_KILLS, seed=seed, store=store, patience_s=CONTROL_PATIENCE_S
        )
        findings = torture.run().findings
        if any(expected in each and each.split(": ")[1] in APPLICATIONS for each in findings):
            return
    pytest.fail(f"{ROUNDS_MAX} runs, and nothing {expected}: at last {findings[:50]}")
