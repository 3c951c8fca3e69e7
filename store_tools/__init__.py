"""Tools for stores and for data of other brokers; no broker imports them.

- `command/`    the command `flowguard store`
- `rocks/`      tools for closed stores on RocksDB: read, verify, salvage, merge
- `mosquitto/`  the command `flowguard import`: the configuration of Mosquitto
- `tbmq`        reads the queues of TBMQ in Redis
- `redis_reader`  reads a store on Redis
- `transfer`      copies one store to another one
"""
