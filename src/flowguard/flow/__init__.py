"""Numbers in, verdicts out: windows, gates, meters, bounded queues.

The room knows no packet, no topic, no socket and no clock: sizes, keys and `now_s` (seconds,
monotonic, any origin) are arguments. Overload is a value with a reason, never an exception.
The same objects run in the broker, in the proxy and in the simulator.
"""

from flowguard.flow.gate import ConnectGate
from flowguard.flow.meter import LoadMeter, Signal
from flowguard.flow.queue import BoundedQueue, Budget
from flowguard.flow.verdict import Reason, Verdict
from flowguard.flow.window import InflightWindow, NodeWindow

__all__ = [
    "BoundedQueue",
    "Budget",
    "ConnectGate",
    "InflightWindow",
    "LoadMeter",
    "NodeWindow",
    "Reason",
    "Signal",
    "Verdict",
]
