"""Work of the node that no packet requests.

- `timers`        keep-alive, connect timeout, session expiry and will delay
- `due`           the deadlines that a tick has reached
- `outage`        since when the store accepts no writes
- `dead_letters`  messages that expired or were dropped, for their own topics
- `holdings`      memory that the node uses, counted
- `sys_topics`    `$SYS`, as users of Mosquitto expect it
"""
