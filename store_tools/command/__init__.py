"""The command `flowguard store`.

- `store`    the command and its subcommands
- `parts`    errors, progress and output of all of them
- `info`     the contents of a store in numbers
- `export`   sessions and messages as JSON lines
- `imports`  data of other brokers
- `copy`     copies of a store
- `backup`   copies of a data directory
- `workers`  the stores of another number of workers
- `log`      the durable log
- `redis`    a store on Redis
"""
