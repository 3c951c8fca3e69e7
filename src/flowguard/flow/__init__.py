"""Numbers in, verdicts out: whether work may begin, and why not.

The room knows no packet, no topic, no socket and no clock: sizes, keys and `now_s` (seconds,
monotonic, any origin) are arguments. Overload is a value with a reason, never an exception.
The same objects run in the broker, in the proxy and in the simulator.

- `guard`           the one door to a broker, and the essay to begin with: five calls
- `window`          what one client, and all of them together, have in process; `cost`: what counts
- `pool`            whose turn it is where all together have as much as the node may
- `gate`            CONNECTs: those beyond the limit stand in `waiting`, for their `patience`;
                    `refusals`: what refusing may cost, and when to connect again
- `observer`        what a node sees of itself, as a sample of `signals`; `pressure` is how bad
- `leverage`        how much of the loop's work windows can put off: they are pressed by no more
- `time_share`      one kind of work takes turns with all other work of the loop, by time
- `controller`      the law in the log domain, of windows (`law`) and of CONNECTs (`concurrency`)
- `policy`          what a law looks like from outside; `adaptive` is flowguard's, and `policies`
                    finds it and those it is up against (`baselines`) by name
- `shadow`          a second policy that gets the samples of the first one and decides nothing
- `budget`          bounds on bytes that clients share fairly; `holders`: who holds most
- `verdict`         the words of all decisions; `histogram` counts durations, `smoothed` forgets
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
