"""The scheduling rounds ("turns") of a loop around a node: their order, size and ports.

- `turns`   the steps of a turn, how much each of them may do, and when other tasks run
- `ports`   the node's side of the interface between loop, sockets and store
- `rounds`  the order of clients that have packets and capacity
- `sends`   connections with bytes for their sockets at the end of a slice
- `pages`   stored messages of clients that have reconnected, read and sent in turns
"""
