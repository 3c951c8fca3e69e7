"""The connection to a Kafka cluster; the driver is aiokafka, an optional dependency.

- `link`    an asyncio loop in a thread, and the producer
- `access`  TLS and passwords
- `reader`  the consumer, and the offsets that it commits
- `driver`  the parts of aiokafka that are not public
- `errors`  errors of the driver and of servers as errors of flowguard
"""
