"""Tools for stores and for data of other brokers; no broker imports them.

- `command/`    the command `flowguard store`
- `rocks/`      stores on RocksDB that no broker has open: read, verify, salvage, merge
- `mosquitto/`  the command `flowguard import`: the configuration of Mosquitto
- `tbmq`        queues that a TBMQ left in Redis
- `redis_reader`  a prefix in Redis, for looking at
- `transfer`      all of one store into another one
"""
