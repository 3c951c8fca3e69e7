"""Tools for the stores of several workers together.

- `move`   moves sessions to another number of workers
- `owed`   delivers messages that workers owe to each other
"""
