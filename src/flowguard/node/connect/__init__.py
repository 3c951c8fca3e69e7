"""CONNECT, the rights of clients, and the registry of sessions.

- `connecting`      the path of a CONNECT: capacity, guard, authentication, claim, CONNACK
- `rejections`      reasons to reject an authenticated client
- `parts`           the parts of a node that this path uses
- `placement`       the worker that owns the session of a client
- `attempts`        counts of connections that have not finished CONNECT
- `accept_state`    whether sockets are accepted
- `registry`        all sessions: their clients, take-over, expiry and wills
- `authentication`  hook points for identity and rights
- `reviews`         sessions whose rights have changed, and what those were before
- `proof_times`     connections that end when the credential of their client expires
- `ends`            ends of connections that the store does not know yet
- `partings`        sockets of clients that left in good order, until the store has recorded it
"""
