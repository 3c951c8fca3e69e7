"""The simulated experiments of docs/explain/overload.md, each with its pass column and a control.

`python -m benchmarks.experiments` (or `make bench-experiments`) runs all of them in virtual time;
`--only` some, `--scale` smaller ones, `--seeds` more of each. Every figure here is simulated.

- `cases`    what an experiment is: scenarios with changes, policies, and who judges the runs
- `probe`    what a run shows ten times a virtual second, and what each population got
- `figures`  figures of a run, and of the seeds together: mean and 95 % interval, or never
- `judging`  a figure against its bound, and a control that has to miss it
- `running`  runs cases in processes of their own
- `e02_flash_crowd` and the others: one experiment each, `EXPERIMENT`
- `speed`    the simulator itself: events, time and memory against the number of clients
"""
