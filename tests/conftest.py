"""Rules for all tests: the effort of the property tests, and the order of tests.

The profile test is the default, quick is for a first answer (`make quick`): both repeat the same
examples each time, so that a failure can be repeated.
soak draws others each time (`make soak`), and so does every profile with --hypothesis-seed=N.
HYPOTHESIS_PROFILE chooses another one by name. No profile has a deadline: the time of one example
depends more on the machine than on the code.
"""

import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Generator

import pytest
import structlog
from hypothesis import HealthCheck, Phase, settings
from xdist.remote import Producer
from xdist.scheduler.loadscope import LoadScopeScheduling

from flowguard import build
from simulations import baselines
from tests.support.compiled import COMPILED, script
from tests.support.reaper import folder_in_memory, reap_at_the_end

baselines.load()  # Tests compare with them. A broker loads them only if its settings name one.
COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

settings.register_profile("test", COMMON, max_examples=20, derandomize=True)
settings.register_profile("quick", COMMON, max_examples=4, stateful_step_count=15, derandomize=True)
settings.register_profile(
    "soak",
    COMMON,
    max_examples=50,
    database=None,
    print_blob=True,
    # Without `explain`, which traces every line: what failed took longer than a test may.
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)
TOGETHER = (
    "tests/spark_",
    "tests/test_tidy.py",
    "tests/test_prose.py",
    "tests/test_site.py",
    "tests/test_wheels.py",
    "tests/deploy/test_image.py",
    "tests/interop/test_doors.py",
    "tests/interop/test_through_proxy.py",
    "tests/interop/",
    "tests/flowguard/cli/test_explain.py",
    "tests/flowguard/cli/test_kafka_away.py",
    "tests/flowguard/cli/test_top.py",
    "tests/flowguard/ops/test_page.py",
    "tests/flowguard/stores/kafka/test_access.py",
    "tests/flowguard/stores/kafka/test_on_three.py",
    "tests/flowguard/stores/redis/test_cluster.py",
    "tests/flowguard/stores/test_contract.py",
    "tests/flowguard/workers/test_handover.py",
    "tests/flowguard/workers/test_messages.py",
)
"""Beginnings of names of tests that share what is dear: a Spark session, the parsed sources, a
browser, two wheels, brokers, three nodes of Kafka, six of Redis, certificates made by Java."""
REPEATED = tuple(f"{folder}/" for rooms in COMPILED for folder in rooms)
"""Beginnings of names of tests that test_compiled.py repeats, but for those marked `once`."""
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or "test")

# By default, structlog colours a traceback with all its local variables: half a second each.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)

# Bytecode is kept, whatever the environment says: else each of the hundreds of programs that tests
# start, and each process of pytest-xdist, compiles all of its modules anew.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Started in the background or by nohup: what is ignored here is ignored by each program under test.
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


def pytest_configure(config: pytest.Config) -> None:
    """Nothing that tests start survives them; a seed that is asked for counts in any profile.

    BUILD_UNDER_TEST says on which build they are to run: tests that pass on another prove nothing.
    """
    wanted = os.environ.get("BUILD_UNDER_TEST", "pure Python")
    if build.name() != wanted:
        raise pytest.UsageError(f"{wanted} is to be tested, and the path has {build.name()}")
    if not hasattr(config, "workerinput"):  # not a process of pytest-xdist, but the one above
        reap_at_the_end(None if "TMPDIR" in os.environ else folder_in_memory())
    if config.getoption("--hypothesis-seed") is not None:
        settings.register_profile("seeded", settings(derandomize=False, database=None))
        settings.load_profile("seeded")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order long tests first, and of them those last that wait for the compiler, which takes
    minutes of one core and is started by another test (test_wheels.py).

    `make test` leaves out tests that test_compiled.py runs. The sources of these packages run in
    the programs that other tests start, and in all simulations.
    """
    may_leave_out = "BUILD_UNDER_TEST" not in os.environ and script().missing() is None
    if "LEAVE_OUT_COMPILED" in os.environ and may_leave_out:
        left_out = {item for item in items if _runs_compiled(item)}
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
    items.sort(
        key=lambda item: (
            item.get_closest_marker("long") is None,
            item.path.name == "test_compiled.py",
        )
    )


def _runs_compiled(item: pytest.Item) -> bool:
    """Return True if test_compiled.py runs this test and no other build needs it.

    Torture that is not slow runs on both builds.
    """
    is_repeated = item.nodeid.startswith(REPEATED) and item.get_closest_marker("once") is None
    is_slow = item.get_closest_marker("slow") is not None
    return is_repeated and (is_slow or not item.nodeid.startswith("tests/torture/"))


class Distribution(LoadScopeScheduling):
    """Each test goes to the next process that is free; those of TOGETHER to one, and first."""

    def _split_scope(self, nodeid: str) -> str:
        return next((each for each in TOGETHER if nodeid.startswith(each)), nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Distribution:
    """Not xdist's own groups: with pytest 9.2 they are groups of one, without a word."""
    return Distribution(config, log)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, None, None]:
    """Print skipped tests and their reasons in the last line: a missing program proves nothing.

    Lines before it are those of tests that run tests themselves.
    """
    yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(session.config, "workerinput"):
        return
    reasons = Counter(
        "; ".join(report.longrepr[2].removeprefix("Skipped: ").splitlines())
        for report in reporter.stats.get("skipped", ())
    )
    for report in reporter.stats.get("passed", ()):
        for line in (text for name, text in report.user_properties if name == "skipped"):
            reporter.write_line(line)
    if reasons:
        told = ", ".join(f"{count} ({reason})" for reason, count in reasons.most_common())
        reporter.write_line(f"skipped: {told}")


SOCKETS = Counter[str]()
"""Number of sockets that this process has made, by the name of their audit event."""


def count_sockets(event: str, _arguments: tuple[object, ...]) -> None:
    if event == "socket.__new__":
        SOCKETS[event] += 1


sys.addaudithook(count_sockets)


@pytest.fixture(autouse=True)
def _name_the_test_that_leaves_a_socket_open() -> Generator[None]:
    """Collect garbage after each test that made a socket.

    An open socket that is collected later is reported as a failure of the test that runs then.
    This fixture is the first of each test, so it ends after the test's own fixtures.
    """
    before = SOCKETS.total()
    yield
    if SOCKETS.total() > before:
        gc.collect()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without the garbage collector. Then freeze them and raise its thresholds,
    because thousands of tests live until the end."""
    gc.disable()
    collected = yield
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    gc.enable()
    return collected
