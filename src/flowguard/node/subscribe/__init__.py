"""SUBSCRIBE and UNSUBSCRIBE.

- `subscribing`  both packets, from rights to the answer
- `searches`     retained messages for new subscriptions
- `start_time`   a SUBSCRIBE that begins in the past: its time, and whether that is allowed
"""
