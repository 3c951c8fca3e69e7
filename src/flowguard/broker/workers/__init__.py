"""Workers of one machine, each of them a process: what they exchange, in the loop of each.

- `unix_sockets`  sockets between workers, in the data directory
- `fd_frames`     frames that carry a descriptor
- `handover`      connections whose session another worker owns
- `pipes`         bytes of TLS and WebSocket clients that another worker serves
- `links`         the connections of a mesh (`flowguard.cluster`)
"""
