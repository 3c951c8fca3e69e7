"""Checks of credentials outside the loop.

- `identity_checks`  the identity of a CONNECT
- `scram_exchange`   a check with SCRAM, in two steps
- `hashers`          threads for password hashes, and the order of their work
"""
