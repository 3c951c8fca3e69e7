"""SUBSCRIBE and UNSUBSCRIBE.

- `subscribing`  both packets, from rights to the answer
- `searches`     retained messages for new subscriptions
- `start_time`   start time of a SUBSCRIBE in the past, and the check whether it is allowed
"""
