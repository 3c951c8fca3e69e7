"""Members of a cluster, links between them, routes, and load that they announce, without IO.

- `pressure`  the records of other nodes, their merge, and the windows that follow from them
- `frames`    frames of a link, as bytes
- `members`   the nodes, their states, and the owner of each session
- `shards`    which node is to run which part of the sessions
- `pace`      when the next part may move to another node
- `incarnations`  the highest known number of the owners of each part
- `routes`    filters of the sessions of each node, as the other nodes know them
- `links`     the messages of one ordered pair of nodes, until they are durable
- `mesh`      all links of one node
"""

import flowguard.flow  # noqa: F401  it imports `pressure`, which imports its signals
from flowguard.cluster.frames import NOT_OWED, LinkMessage, OwedAddress
from flowguard.cluster.links import IncomingStream, OutgoingStream
from flowguard.cluster.members import Members, MemberState
from flowguard.cluster.mesh import LinkConnection, LinkHost, Mesh
from flowguard.cluster.pressure import Cluster, PressureRecord
from flowguard.cluster.routes import OwnFilters, PeerFilters

__all__ = [
    "Cluster",
    "IncomingStream",
    "LinkConnection",
    "LinkHost",
    "LinkMessage",
    "Members",
    "MemberState",
    "Mesh",
    "NOT_OWED",
    "OutgoingStream",
    "OwedAddress",
    "OwnFilters",
    "PeerFilters",
    "PressureRecord",
]
