"""Load for any MQTT broker: crowds that connect, messages that flow, and their results.

- `plan`       the shape of a storm, and when a rejected client retries
- `access`     the layers that clients speak, and the users as which they connect
- `layers`     TLS and WebSocket below MQTT
- `loop`       one trio task over one epoll set; clients are objects, not tasks
- `client`     one MQTT client: attempts until it is connected, then its part
- `crowd`      all clients of a storm: connect, hold, leave
- `traffic`    the parts of clients, `publisher` and `subscriber`, and the books on every message
- `tally`      counts and percentiles, and the result as plain values for JSON

The package is a client of brokers, flowguard or others. It shares only the codec with
`flowguard.broker`, and its results are what clients saw.
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
