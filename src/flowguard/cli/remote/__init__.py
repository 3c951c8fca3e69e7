"""Commands that ask the HTTP port of a running broker.

- `top`      watches a broker; `top_screen` draws the frame, `top_workers` that of several workers
- `lists`    lists clients, filters and retained messages, and changes them
- `acl`      tells which rule lets a client publish or subscribe
- `cluster`  shows nodes and shards
- `drain`    ends a broker slowly
- `explain`  shows why a client waits
- `trace`    prints the packets of some clients
- `log`      shows or changes the levels of the log
- `reload`   has certificates, users, keys and rules read again
- `ask`      sends a request; `answers` checks the form of the answer
"""
