"""Side by side: flowguard, Mosquitto and amqtt under the same load, in one run on one machine.

`python -m benchmarks` (or `make bench`) does all of it. Broker and load generator each have a core
of their own; the unit is messages in and out per second of *broker CPU time* (user and system, all
threads), which survives other processes better than a rate by the clock does.

- `loadgen.c`   the clients, one thread of C, so that the generator does not decide the result:
  `clients.h` speaks MQTT, `stream.h` TLS and WebSocket below it, `measure.h` reads clocks,
  `wire.h` is shared with the sink
- `sink.c`      a relay that does nothing else: what the generator itself can reach, row by row
- `flood.c`     clients that ask for more than there is, for `benchmarks.overload`; `crowd.h` holds
  them, `mqtt5.h` speaks MQTT 5.0
- `tls_crowd.c` clients that come by TLS at once, for `tls_storm`; `ungated` is its control
- `build`       compiles all of them when they changed
- `machine`     cores, pinning, memory of a process, the line that says where figures come from
- `brokers`     how a server is started, found ready and ended; `peers`: the four that are known
- `scenarios`   what is measured, and the goals
- `runner`      one broker, one scenario, one sample; refuses data that cannot be right
- `verdicts`    medians, ratios, verdicts
- `report`      the tables: in the terminal and as Markdown

`python -m benchmarks.parts` measures flowguard alone, part by part, and `benchmarks.experiments`
simulates. They share:

- `overload`    more load than there is capacity, with and without protection
- `store`       the RocksDB store by itself
- `log`         sessions on the durable log, over TCP
- `conditions`  machine and length of a run
- `checks`      a bound, what was reached, and whether that is enough
- `pages`       what came of it: in the terminal, and with `--write` as pages of `results/`
"""
