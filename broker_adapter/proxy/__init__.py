"""The proxy in front of an MQTT broker: `flowguard proxy`.

- `command`   the command
- `run`       all tasks of a proxy
- `watch/`    what it shows of itself
- `reactor`   its sockets; the modules below have no IO
- `core`      the guard, and the choice of an upstream
- `host`      the interface of the core for its pairs
- `upstream`  the health of an upstream
- `pair`      a client and its connection to an upstream
- `life`      the begin and the end of a client's connection
- `states`    the states of a pair
- `connect`   the parts of a CONNECT that the proxy reads
- `packets`   packets that wait, and packets in process
- `outgoing`  bytes to send
- `frames`    the boundaries of packets
- `protocol`  the client's address for upstreams, as a PROXY header
"""
