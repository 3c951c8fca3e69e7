"""Kit: experiments that show how any broker behaves in a crowd.

- `plan`        the experiments by name, and facts about the broker
- `report`      the words of a report: verdict, figure, sentence, as JSON
- `knock`       checks that a broker serves one client, and finds its version of MQTT
- `connecting`  connect storm, retry storm, restart: how clients get connected
- `messaging`   slow subscriber, flood with pings, noisy client, wide fan-out
- `pings`       a flooding client that also sends PINGREQ
- `noise`       the noisy client, a process of its own
- `memory`      resident memory of a broker that runs on this machine
- `running`     all of them in turn, with a knock before and after each

Only the clients' view counts as survival: a broker that serves no client has failed.
"""

from loadgen.kit.plan import EXPERIMENTS, Experiment, KitPlan
from loadgen.kit.report import Finding, KitFigure, KitReport, MemoryUse, Survival
from loadgen.kit.running import Kit

__all__ = [
    "EXPERIMENTS",
    "Experiment",
    "KitPlan",
    "KitFigure",
    "Finding",
    "KitReport",
    "MemoryUse",
    "Survival",
    "Kit",
]
