"""Users, their passwords, and what is remembered of both; no sockets, no clock.

- `passwords`  a file of users and hashes: argon2id, and those of Mosquitto's own files
- `remembered` passwords that were right lately, under a key of this process
- `failures`   how often each address may be wrong
"""
