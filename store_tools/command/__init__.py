"""The command `flowguard store`.

- `store`    the command and its subcommands
- `info`     the contents of a store in numbers
- `export`   sessions and messages as JSON lines
- `imports`  data of other brokers
- `copy`     copies of a store
- `log`      the durable log
- `redis`    a store on Redis
"""
