"""The event loop: one task, one epoll set, connections as plain objects.

- `reactor`      drives `node.loop.turns` with sockets
- `socket_set`   the sockets of a loop, for the broker or a proxy
- `listeners`    accepts connections while there is capacity
- `listening`    a listening socket, and the layers of its connections
- `link`         a socket and its connection
- `descriptors`  how many connections the file descriptors allow
- `other_sockets`  sockets that are neither clients nor listeners
- `other_tasks`  whether another task can run
"""
