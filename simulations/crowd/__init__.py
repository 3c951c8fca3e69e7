"""Clients of a simulation.

- `clients`     populations that connect; `retry` is their delay after a failure
- `connection`  one attempt to connect, both ends in one object
- `publishers`  messages that clients send; `topics` has the receivers
"""
