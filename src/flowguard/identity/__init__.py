"""Users, their proofs of identity, and remembered proofs; no sockets, no clock.

- `passwords`  a file of users and hashes: argon2id, and those of Mosquitto's own files
- `scram`      passwords that are proved without being sent
- `tokens`     keys by which signed tokens (JWT) are checked
- `remembered` recently accepted passwords and tokens, under a key of this process
- `failures`   limits on failed attempts per address
"""
