"""Users, how they prove who they are, and what is remembered of that; no sockets, no clock.

- `passwords`  a file of users and hashes: argon2id, and those of Mosquitto's own files
- `scram`      passwords that are proved without being said
- `tokens`     keys by which signed tokens (JWT) are checked
- `remembered` passwords and tokens that were right lately, under a key of this process
- `failures`   how often each address may be wrong
"""
