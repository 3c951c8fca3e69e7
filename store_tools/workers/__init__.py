"""The stores of several workers as a whole.

- `move`   the stores of another number of workers
- `owed`   messages that workers owe to each other
"""
