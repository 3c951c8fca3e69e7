"""What HiveMQ published of its overload protection, the old one and the new, simulated here.

- `curves`   a run, second by second: what the pictures draw
- `figures`  figures 3 and 4 of the article: scenario, policies, page

`python -m benchmarks.published`, or `make bench-published`; docs/develop/published.md compares.
"""
