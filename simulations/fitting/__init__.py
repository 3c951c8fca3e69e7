"""From the recorded run of a broker to a scenario that is like it.

- `recorded`  the tables of one run, read without Spark
- `measured`  the figures that a recorded and a simulated run have in common
- `groups`    which clients there were: arrivals, roles, retries
- `messages`  what they published, and to how many
- `costs`     the duration of work and of commits
- `fit`       all of it as a scenario, with what the recording does not show
- `writing`   the scenario as a TOML file
"""
