"""The connection to a Kafka cluster; the driver is aiokafka, an optional dependency.

- `link`    an asyncio loop in a thread, and the producer
- `access`  TLS and passwords
- `reader`  the consumer, which commits offsets
- `driver`  the parts of aiokafka that are not public
- `errors`  converts errors of the driver and of servers to those of flowguard
"""
