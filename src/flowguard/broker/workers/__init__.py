"""Workers of a machine or a cluster, each of them a process: what they exchange, in their loops.

- `worker_addresses`  where other workers can be reached
- `worker_ports`      connections with them; `node_tls`: TLS between nodes
- `unix_sockets`      sockets between workers, in the data directory
- `fd_frames`         frames that carry a descriptor
- `handover`          connections whose session another worker owns
- `arrivals`          clients that another node has accepted
- `pipes`             bytes of TLS and WebSocket clients that another worker serves
- `links`             the connections of a mesh (`flowguard.cluster`)
"""
