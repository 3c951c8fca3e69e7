"""The real objects of flowguard in virtual time. Same seed, same bytes.

- `engine`    virtual time: a heap of events
- `draws`     chance by address: the same clients under every policy
- `scenario`  what is simulated, as a record; `proportions` of what packets cost among others
- `world`     a scenario under one policy
- `clients`   populations: connecting, retrying (`retry`), publishing (`publishers`, `topics`); a
              `connection` is one attempt, both ends in one object
- `broker`    one process with its real gate, windows, pool, journal and policy; it accepts and
              reads at `sockets`, connects in `entrance`, serves in `packets` (those for thousands
              in `wide`), sends what waited in `replays`; a `loop` drives the real turns
- `machine`   the host of a process: its disk, its sessions; the network around it, and faults
- `run`       a scenario to its end, and its figures; `view` shows them
- `loading`   scenarios from files and `library`, with `traces` and changed keys;
              `complaints` says what is wrong, `kinds` whether a value is a number or none,
              `reference` explains every key
- `command`   `flowguard simulate`; `archive` keeps its runs
- `recorder`  a run as Parquet tables (docs/reference/parquet-schema.md): `samples` of nodes with
              their `counters`, populations, attempts, latencies
- `invariants` what must hold at every instant; the first violation ends the run
- `calibration`  what work costs a real broker, and whether all this then predicts it
"""
