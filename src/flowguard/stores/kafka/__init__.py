"""The store of applications on an Apache Kafka cluster.

- `store`     queues of applications in topics, everything else in another store
- `beside`    that other store, for two threads
- `owner`     which data directory owns a prefix
- `moves`     whole queues into topics, and out again
- `plan`      a batch on its way
- `topics`    names and creation of topics
- `queue`     the state of one topic; `recovery` reads it at the start
- `window`    the settled part of a topic, as the metadata of a committed offset keeps it
- `commits`   windows on their way to Kafka

- `connection/`  the only package that knows the driver, besides `groups/`
- `groups/`      shared subscriptions that several brokers have in common
"""
