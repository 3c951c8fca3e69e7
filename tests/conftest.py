"""What holds for all tests: how hard the property tests try, and in which order they run.

dev is the default, ci (the same examples each time, so that a red run can be repeated) where the
variable CI is set, brief where the same was tried before, deep for a night. HYPOTHESIS_PROFILE
chooses another one by name. No profile has a deadline: the time of one example says more about the
machine than about the code.
"""

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

settings.register_profile("dev", COMMON, max_examples=50)
settings.register_profile("brief", COMMON, max_examples=10, derandomize=True)
settings.register_profile("ci", COMMON, max_examples=200, derandomize=True)
settings.register_profile("deep", COMMON, max_examples=20_000, print_blob=True)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev")
)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background: what is ignored here is ignored by every program under test.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One process has the Spark session; what takes longest comes first, so that no core waits."""
    for item in items:
        if item.get_closest_marker("spark") is not None:
            item.add_marker(pytest.mark.xdist_group("spark"))
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
