"""Sessions on the durable log, over TCP: fleets that sleep, fan-out, a crowd that comes back.

- `sleepers`    drives `sleepers.c`, and fills a log that clients are to come back to
- `fleet`       10,000 sleeping sessions get a command; a session has 10^6 messages behind it
- `fan_out`     real time: through the log, through queues, in memory
- `resuming`    1,000 sessions resume at once while others publish
"""
