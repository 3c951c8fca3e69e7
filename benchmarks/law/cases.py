"""The cases of the dominance table: scenarios in small, and loads that a search has found worst.

A node is as much smaller as its crowd, so that the question stays; where something did not follow,
the case says so. Loads are random ones on which a fixed window dominated the law once, as they were
drawn then but for what packets cost among others (`simulations.proportions`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

LOADS: Final = Path(__file__).parent / "loads"
SMALL: Final = 0.05


@dataclass(frozen=True)
class LawCase:
    """A scenario with changes."""

    scenario: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    unscaled: str = ""
    """What did not follow the smaller size."""


def _crowd(**changes: Any) -> LawCase:
    small = {
        "clients": 10_000,
        "connects_per_s": 667 * SMALL,
        "node.listen_backlog": round(4_096 * SMALL),
        "flow.connect_buffer_max": round(10_000 * SMALL),
    }
    return LawCase("flash_crowd", small | changes, "objectives")


CASES: Final[Mapping[str, LawCase]] = {
    "fan_out": LawCase(
        "fan_out",
        {"clients": 2_000, "node.delivery_s": 0.000_15, "flow.cost_deliveries": 20},
    ),
    "flash_crowd": _crowd(),
    "flash_crowd, kernel": _crowd(acceptors_first=False),
    "flash_crowd, dear": _crowd(refuse_cost=0.22),
    "flash_crowd, fixed": _crowd(retry="fixed", duration_s=240.0),
    "flash_crowd, hints": _crowd(retry="hints"),
    "crowd_that_fits": LawCase("crowd_that_fits"),
    "crowd_that_fits, not": LawCase("crowd_that_fits", {"clients": 20_000, "crowd_s": 30.0}),
    "busy_publishers": LawCase("busy_publishers"),
    "heavy_connections": LawCase("heavy_connections"),
    "cascade": LawCase("cascade", {"clients": 5_000}, "objectives"),
    "cascade, second": LawCase("cascade", {"clients": 5_000, "second_after_s": 20.0}, "objectives"),
    "retry_storm": LawCase("retry_storm"),
    "retry_storm, pause": LawCase("retry_storm", {"trigger": "pause"}),
    "noisy_neighbour": LawCase(
        "noisy_neighbour",
        {
            "populations.noisy.clients": 300,
            "populations.quiet.clients": 30,
            "node.publish_s": 0.000_33,
        },
    ),
    "stability": LawCase("stability", {"publishers": 30, "node.publish_s": 0.004}),
    "stability, 3 clients": LawCase("stability", {"publishers": 3}),
    "slow_store": LawCase("slow_store"),
    "partition": LawCase("partition", {"cut_s": 10.0, "populations.publishers.clients": 45}),
    "diurnal": LawCase("diurnal"),
    **{f"load {path.stem[5:]}": LawCase(str(path)) for path in sorted(LOADS.glob("*.toml"))},
}
