"""One worker with a slow store: its load travels on the links, and only work for it waits."""

from flowguard.codec.packets import Puback
from flowguard.flow.windows.window import UNBOUNDED
from tests.support.machine import Machine, answers
from tests.support.stage import TICK_S, Client

COMMIT_TICKS = 3
"""Time of a commit of the slow store."""
TICKS_MAX = round(1.0 / TICK_S)
RATE = 5
"""Messages per tick of each publisher."""


def pair(machine: Machine, name: str, publisher: str, subscriber: str) -> Client:
    """Connect a durable subscriber and its publisher; return the publisher."""
    machine[subscriber].connect_durable(f"s-{name}").subscribe(name, qos=1)
    return machine[publisher].connect(f"p-{name}")


def run(machine: Machine, publishers: dict[str, Client], slow: str, ticks: int) -> dict[str, int]:
    """Publish for a while; return the number of PUBACKs of each publisher."""
    acknowledged = dict.fromkeys(publishers, 0)
    for tick in range(ticks):
        machine[slow].hold_commits = tick % COMMIT_TICKS != COMMIT_TICKS - 1
        if not machine[slow].hold_commits:
            machine[slow].release_commits()
        for topic, publisher in publishers.items():
            for _ in range(RATE):
                publisher.publish(topic, b"x", qos=1)
        machine.advance(TICK_S)
        for topic, publisher in publishers.items():
            acknowledged[topic] += len(answers(publisher, Puback))
    return acknowledged


def windows(machine: Machine) -> dict[str, int]:
    return {name: worker.node.guard.window.limit for name, worker in machine.workers.items()}


def test_slow_store_of_a_worker_slows_only_clients_whose_work_touches_it() -> None:
    machine = Machine("a", "b", "c")
    publishers = {
        "apart": pair(machine, "apart", "a", "a"),
        "between": pair(machine, "between", "a", "c"),
        "touching": pair(machine, "touching", "a", "b"),
    }
    before = windows(machine)
    assert run(machine, publishers, "b", TICKS_MAX)["touching"]
    after = windows(machine)
    assert (after["a"], after["c"]) == (before["a"], before["c"])
    assert after["b"] <= before["b"] / 2
    peers = machine["a"].node.router.peers.by_name
    assert (peers["b"].window, peers["c"].window) == (after["b"], UNBOUNDED)
    acknowledged = run(machine, publishers, "b", TICKS_MAX)
    assert acknowledged["apart"] == acknowledged["between"] == RATE * TICKS_MAX


def test_messages_for_a_slow_worker_leave_the_budget_of_all_clients_to_others() -> None:
    machine = Machine("a", "b", settings={"flow": {"unfinished_max": 100}})
    touching = {f"touching{n}": pair(machine, f"touching{n}", "a", "b") for n in range(10)}
    apart = pair(machine, "apart", "a", "a")
    run(machine, touching, "b", 5 * TICKS_MAX)
    machine["b"].hold_commits = True
    run(machine, touching, "b", 1)
    assert windows(machine)["b"] < 10 <= windows(machine)["a"]
    assert machine["a"].node.guard.window.in_process == 10 * windows(machine)["b"]
    apart.publish("apart", b"x", qos=1)
    assert len(answers(apart, Puback)) == 1


def test_client_has_as_much_in_process_for_a_slow_worker_as_clients_of_that_worker() -> None:
    machine = Machine("a", "b", "c")
    publishers = {"touching": pair(machine, "touching", "a", "b")}
    run(machine, publishers, "b", TICKS_MAX)
    machine["b"].release_commits()
    assert machine["a"].node.guard.window.in_process == 0
    machine["b"].hold_commits = True
    for _ in range(windows(machine)["a"]):
        publishers["touching"].publish("touching", b"x", qos=1)
    outgoing = machine["a"].node.router.peers.by_name["b"].outgoing
    assert 0 < outgoing.messages_count <= windows(machine)["b"]
    other = pair(machine, "between", "a", "c")
    other.publish("between", b"x", qos=1)
    assert len(answers(other, Puback)) == 1
