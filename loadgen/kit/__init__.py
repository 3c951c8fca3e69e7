"""Kit: experiments that show over plain TCP how any broker behaves in a crowd.

- `plan`        the experiments by name, and what is known about the broker
- `report`      the words of a report: verdict, figure, sentence, as JSON
- `knock`       does it serve one client, with which version of MQTT
- `connecting`  connect storm, retry storm, restart: who gets in, and how
- `messaging`   slow subscriber, flood with pings, noisy neighbour, wide fan-out
- `pings`       a flooding client that also sends PINGREQ
- `noise`       the noisy neighbour, a process of its own
- `memory`      resident memory of a broker that runs on this machine
- `running`     all of them in turn, a knock before and after each

Nothing is taken for survival but what clients saw: a broker that serves nobody has failed.
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
