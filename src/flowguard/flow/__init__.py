"""Numbers in, verdicts out: decides whether work may begin, and gives the reason.

The package has no packets, topics, sockets or clock: sizes, keys and `now_s` (seconds, monotonic,
any origin) are arguments. Overload is a value with a reason, never an exception. These objects run
in the broker, in the proxy and in the simulator.

- `guard`           the one entry to a broker, and the essay to begin with: five calls
- `window`          the work in process of one client, and of all together; `cost`: its units
- `pool`            the order of clients if all together have as much as the node may
- `gate`            CONNECTs: those beyond the limit are in `waiting`, for their `patience`;
                    `refusals`: the budget for rejections, and when to connect again
- `observer`        what a node observes of itself, as a sample of `signals`, which is judged by
                    `pressure`
- `leverage`        the share of the loop's work that windows can put off; it bounds their pressure
- `time_share`      one kind of work takes turns with all other work of the loop, by time
- `controller`      the law in the log domain, of windows (`law`) and of CONNECTs (`concurrency`)
- `policy`          the interface of a law; `adaptive` is flowguard's, and `policies` finds it and
                    the ones to compare it with (`baselines`) by name
- `shadow`          a second policy that gets the samples of the first one and decides nothing
- `budget`          bounds on bytes that clients share fairly; `holders`: the largest holders
- `verdict`         the words of all decisions; `histogram` counts durations
"""

from flowguard.flow.adaptive import Tell, tell_nobody
from flowguard.flow.budget import Budget, FairBudget
from flowguard.flow.gate.connect_gate import ConnectGate
from flowguard.flow.guard import Guard
from flowguard.flow.load.observer import Observer
from flowguard.flow.load.signals import Signal
from flowguard.flow.policy import Arrival, Gate, Grant, Rung
from flowguard.flow.verdict import Admission, Pause, Reason, Verdict
from flowguard.flow.windows.cost import Cost
from flowguard.flow.windows.holders import Holders
from flowguard.flow.windows.window import AdmissionWindow, NodeWindow

__all__ = [
    "Admission",
    "AdmissionWindow",
    "Arrival",
    "Budget",
    "ConnectGate",
    "Cost",
    "FairBudget",
    "Gate",
    "Grant",
    "Guard",
    "Holders",
    "NodeWindow",
    "Observer",
    "Pause",
    "Reason",
    "Rung",
    "Signal",
    "Tell",
    "Verdict",
    "tell_nobody",
]
