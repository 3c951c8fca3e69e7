"""Overload on purpose: what flowguard does about it on the real broker, and what happens without.

`make bench-overload` runs all of it. The broker has a core and a program of its own, its clients
the other one.

- `store`        a store of known capacity: a commit blocks for a fixed time and a time per message
- `broker`       the broker's program: serves with that store, and says how it is
- `subject`      starts that program under one policy, reads what it said
- `flood`        drives `flood.c`, the generator: phases in, seconds out
- `slow_redis` the headline on a Redis behind a slow line
- `side_by_side` the headline: two policies at three times the capacity, for a minute
- `crowds`       three crowds at this checkout's broker and at another one's, in paired runs
- `e01_fan_out`, `e07_slow_subscribers`, `e08_self_loop`, `e09_keep_alive`, `e12_cost`: experiments,
  one file and one result each, scaled to one machine
- `plot`         time series as SVG
"""
