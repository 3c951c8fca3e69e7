"""The tuner: recorded runs and an objective in, limits out, or a reason why none are recommended.

- `objective`  what is wanted and what must hold, as TOML; those of `objectives` go by their name
- `trials`     which run tried which limits, where, with which seed
- `measuring`  what the objective needs to know of every run, on Spark
- `scoring`    runs beside those of the defaults with the same seed, on both parts of the seeds
- `choosing`   the best on one part of the seeds, judged on the other
- `limits_file`, `tables` and `page` (`charts`) write it down, with what each limit does
- `job`        what the `command` flowguard tune does
"""
