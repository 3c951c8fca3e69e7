"""kafka: what is kept on an Apache Kafka cluster; the driver is aiokafka, an extra.

- `link`: the connection, an asyncio loop in a thread of its own, and its producer
- `access`: TLS and passwords
- `reader`: the consumer, and the offsets it commits; these two and groups know the driver
- `driver`: what is needed of that and is not public
- `errors`: what the driver and the servers say, as errors of ours
- `store`: queues of applications in topics, everything else in another store
- `beside`: that other store, for two threads
- `owner`: which data directory has a prefix; `moves`: whole queues into topics, and out again
- `plan`: a batch on its way; `topics`: what they are called, how they are made
- `queue`: what the store knows of one topic; `recovery`: how it knows
- `window`: what of a topic is settled, as it lies in a committed offset's metadata
- `commits`: windows on their way there, which nobody waits for who need not
- `groups`: shared subscriptions that brokers have together: `group_roster`, which there are, and
  `group_tail`, how that is known; `group_claims`, what this broker says of it; `group_consumer`
  reads one, `group_window` is what it has of it, `group_room` how much of all that may be,
  `group_record` a message there; `group_bug`, what is said of a bug,
  and `group_renewal`, what servers would forget
"""
