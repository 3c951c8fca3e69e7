"""Load that the other nodes of a cluster announce, and what a node makes of it, without IO.

- `pressure`  the records of other nodes, their merge, and the windows that follow from them
"""

import flowguard.flow  # noqa: F401  it imports `pressure`, which imports its signals
from flowguard.cluster.pressure import Cluster, PressureRecord

__all__ = ["Cluster", "PressureRecord"]
