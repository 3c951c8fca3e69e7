"""Many simulations inside Spark tasks: a grid of scenarios and limits in, run directories out.

It stands on `simulations`, which runs, and on `spark_analysis`, which starts Spark; neither of
them knows of the other, or of this.

- `grid`     a grid file as a record
- `points`   the sets of limits: a full grid, or a Latin hypercube
- `plan`     the runs, in the order in which they are begun
- `folder`   the directory of the runs: finished ones are not run again
- `task`     one run inside a Spark task, in a process of its own
- `likeness` a recorded run beside the scenario that `simulations.fitting` made from it; the command
             is `scenario_command`
- `tuning`   `flowguard tune`, with --like by a sweep of such a scenario
- `job`      all of it on Spark; `command` is `flowguard sweep`
"""
