"""Scenarios from files and the library.

- `loading`     reads a scenario, with changed keys; `traces` reads arrivals or messages over time
- `complaints`  what is wrong with a scenario; `kinds` checks numbers
- `reference`   explains every key
"""
