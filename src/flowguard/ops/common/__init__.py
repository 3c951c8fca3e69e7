"""Parts that the broker and the proxy share.

- `measurement`   one measurement, and the form of a table of them
- `measurements`  the measurements that both have
- `explanation`   the explanation of a client
- `view`          the interface that the HTTP port reads
"""
