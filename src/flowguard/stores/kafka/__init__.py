"""The store of applications on an Apache Kafka cluster.

- `store`     queues of applications in topics, everything else in another store
- `beside`    that other store, for two threads
- `owner`     which data directory owns a prefix
- `moves`     moves of whole queues into and out of topics
- `plan`      the state of a batch that is being committed
- `topics`    names and creation of topics
- `queue`     the state of one topic; `recovery` reads it at the start
- `window`    the settled part of a topic, as the metadata of a committed offset keeps it
- `commits`   commits of windows to Kafka

- `connection/`  the only package that uses the driver, besides `groups/`
- `groups/`      shared subscriptions that several brokers have in common
"""
