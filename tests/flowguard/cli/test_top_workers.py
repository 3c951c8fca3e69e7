"""`flowguard top` of several workers: rows, sums, and workers that are down."""

from rich.console import Console

from flowguard.cli.remote.top_workers import MachineHistory, machine_frame
from flowguard.ops.status import Status
from tests.flowguard.cli.test_top import calm


def shown(history: MachineHistory) -> list[str]:
    console = Console(width=100, color_system=None)
    with console.capture() as capture:
        console.print(machine_frame(history, 100))
    return capture.get().splitlines()


def cells(lines: list[str], label: str) -> list[str]:
    (line,) = [line for line in lines if line.split()[:1] == [label]]
    return line.split()[1:]


def status(now_s: float, received: int, clients: int) -> Status:
    found = calm()
    found["now_s"] = now_s
    found["traffic"]["publish_received"] = received
    found["clients"]["connected"] = clients
    found["dropped"] = {"expired": received // 10}
    return found


def test_sum_has_the_numbers_of_all_workers() -> None:
    history = MachineHistory("url")
    history.add([status(10.0, 0, 3), status(10.0, 0, 4)])
    history.add([status(12.0, 100, 3), status(12.0, 300, 4)])
    lines = shown(history)
    assert cells(lines, "0")[:5] == ["3", "0", "50", "0", "10"]
    assert cells(lines, "1")[:5] == ["4", "0", "150", "0", "30"]
    assert cells(lines, "all") == ["7", "0", "200", "0", "40"]


def test_pressure_of_a_worker_has_its_cause() -> None:
    loaded = status(10.0, 0, 3)
    loaded["pressure"]["value"], loaded["pressure"]["cause"] = 2.5, "store"
    history = MachineHistory("url")
    history.add([calm(), loaded])
    assert cells(shown(history), "1")[-2:] == ["2.50", "store"]


def test_worker_that_is_down_has_no_numbers() -> None:
    history = MachineHistory("url")
    history.add([status(10.0, 5, 3), status(10.0, 5, 4)])
    history.add([None, status(12.0, 5, 4)])
    lines = shown(history)
    assert "1 worker down" in lines[0]
    assert cells(lines, "0") == ["down"]
    assert cells(lines, "all")[0] == "4"


def test_trouble_is_shown_above_the_last_known_rows() -> None:
    history = MachineHistory("url")
    history.add([status(10.0, 5, 3)])
    history.trouble = "url: Connection refused"
    lines = shown(history)
    assert "no answer   url: Connection refused" in lines[0]
    assert cells(lines, "0")[0] == "3"
