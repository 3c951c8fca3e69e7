"""The command `flowguard store`.

- `store`    the command and its subcommands
- `parts`    errors, progress and output of all subcommands
- `info`     counts of the contents of a store
- `export`   export of sessions and messages as JSON lines
- `imports`  import of data of other brokers
- `salvage`  copies of what can be read
- `copy`     copies of a store
- `backup`   copies of a data directory
- `workers`  a change of the number of workers
- `log`      reports on the durable log
- `redis`    reports on a store on Redis
"""
