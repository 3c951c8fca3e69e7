"""Who survives a crowd: `flowguard storm --kit` at many brokers, bare and behind `flowguard proxy`.

- `installs`   brings other people's brokers into `.peers`, by their ordinary package clients
- `field`      how each of them is started
- `standing`   a broker that is killed and started again on its port, with or without a proxy
- `picture`    the scoreboard as an SVG for pages

`python -m benchmarks.survivors`, or `make scoreboard`.
"""
