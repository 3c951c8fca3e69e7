"""kafka: what is kept on an Apache Kafka cluster; the driver is aiokafka, an extra.

- `link`: the connection, an asyncio loop in a thread of its own; it alone knows the driver
- `errors`: what the driver and the servers say, as errors of ours
"""
