"""The turns of a loop around a node: their order, their size, their ports to the world.

- `turns`   the steps of a turn, how much each of them may do, and when other tasks run
- `ports`   the sockets, the store and the timer of a loop, as the node needs them
- `rounds`  the order of clients that have packets and capacity
- `sends`   connections with bytes for their sockets at the end of a slice
- `pages`   stored messages of clients that came back, read and sent by turns
"""
