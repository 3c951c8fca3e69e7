"""Numbers in, verdicts out: signals, pressure, windows, gates, pools, budgets, and policies.

The room knows no packet, no topic, no socket and no clock: sizes, keys and `now_s` (seconds,
monotonic, any origin) are arguments. Overload is a value with a reason, never an exception.
The same objects run in the broker, in the proxy and in the simulator.
"""

from flowguard.flow.adaptive import Tell, tell_nobody
from flowguard.flow.budget import Budget, FairBudget
from flowguard.flow.cluster import Cluster, PressureRecord
from flowguard.flow.cost import Cost
from flowguard.flow.gate import ConnectGate
from flowguard.flow.holders import Holders
from flowguard.flow.observer import Observer
from flowguard.flow.policies import make_policy
from flowguard.flow.policy import Arrival, Gate, Grant, Policy, Resumption, Rung
from flowguard.flow.pool import FairPool
from flowguard.flow.shadow import Shadow
from flowguard.flow.signals import Pressure, Sample, Signal
from flowguard.flow.verdict import Reason, Verdict
from flowguard.flow.window import AdmissionWindow, NodeWindow

__all__ = [
    "Arrival",
    "Budget",
    "Cluster",
    "ConnectGate",
    "Cost",
    "FairBudget",
    "FairPool",
    "Gate",
    "Grant",
    "Holders",
    "AdmissionWindow",
    "NodeWindow",
    "Observer",
    "Policy",
    "Pressure",
    "PressureRecord",
    "Reason",
    "Resumption",
    "Rung",
    "Sample",
    "Shadow",
    "Signal",
    "Tell",
    "Verdict",
    "make_policy",
    "tell_nobody",
]
