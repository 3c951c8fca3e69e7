"""Load for any MQTT broker: crowds that connect, messages that flow, and what became of them.

- `plan`       what a storm should be, and when a refused client tries again
- `loop`       one trio task over one epoll set; clients are objects, not tasks
- `client`     one MQTT client: attempts until it is in, then its part
- `crowd`      all clients of a storm: connect, hold, leave
- `traffic`    the parts of clients, `publisher` and `subscriber`, and the books on every message
- `tally`      counts and percentiles, and the result as plain values for JSON

The room is a client of brokers, ours or others': it shares nothing with `flowguard.broker` but the
codec, and its results speak of what clients saw.
"""

from loadgen.storm.crowd import Crowd
from loadgen.storm.plan import CrowdPlan, RetryMode, RetryPolicy, Target, TrafficPlan
from loadgen.storm.tally import ConnectTally, LatencyHistogram, TrafficTally
from loadgen.storm.traffic import Traffic

__all__ = [
    "Target",
    "CrowdPlan",
    "TrafficPlan",
    "RetryMode",
    "RetryPolicy",
    "Crowd",
    "Traffic",
    "ConnectTally",
    "TrafficTally",
    "LatencyHistogram",
]
