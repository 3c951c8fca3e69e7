"""The command `flowguard demo`.

- `demo`     the command: a broker, a crowd, and a screen
- `broker`   the small broker of the demo
- `screen`   the live view
- `summary`  the comparison at the end
"""
