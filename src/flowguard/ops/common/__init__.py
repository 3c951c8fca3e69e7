"""Parts that the broker and the proxy share.

- `measurement`   one measurement, and the form of a table of them
- `measurements`  the measurements that both have
- `view`          the interface that the HTTP port reads
"""
