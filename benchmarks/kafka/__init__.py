"""Applications in Kafka, beside TBMQ's way to them and beside the log; and the Kafka of a run.

- `measures`  what a message costs, and how late it is; `__main__`: the table
- `behind`    an application that catches up while devices publish, and 500 that are idle
- `brokers`   ours on Kafka and on the log, and the published way
- `literal`   the published design, as its authors describe it; `literal_broker`: with sockets
- `servers`   Kafka, started and ended by the run
"""
