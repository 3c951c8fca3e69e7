"""The real objects of flowguard in virtual time. Same seed, same bytes.

- `engine`       virtual time: a heap of events
- `draws`        chance by address: the same clients under every policy
- `scenario`     what is simulated, as a record; `proportions` of what packets cost among others
- `scenario_files`  scenarios from files and `library`
- `world`        a scenario under one policy; the network, and faults
- `crowd`        populations of clients
- `process`      a node: one process on its machine
- `invariants`   what must hold at every instant; the first violation ends the run
- `baselines`    overload policies of other brokers, to compare with
- `results`      a scenario to its end, its figures, and its Parquet tables
- `command`      `flowguard simulate`
- `calibration`  what work costs a real broker, and whether all this then predicts it
"""
