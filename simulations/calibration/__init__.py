"""Calibration: what work costs a real broker here, and whether the simulator then predicts it.

- `process`   a real `flowguard serve` as a child process, and its CPU time and memory
- `slow`      the same broker with a store that can stop, or that is slow by the clock
- `load`      the clients' side, on the loop of `loadgen.storm`
- `crowd`     clients that connect, are refused and come back, with the simulator's own draws
- `traffic`   publishers and subscribers, and packets with an answer, one at a time each
- `probes`    the measurements for each cost; `estimates` makes costs of them
- `costs`     the result: a small TOML file that overlays any scenario
- `runs`      a scenario on the real broker or in the simulator, with the same record of both
- `cases`     small scenarios, and the ratios that are judged; `check` compares both sides
- `command`   `flowguard calibrate`
"""
