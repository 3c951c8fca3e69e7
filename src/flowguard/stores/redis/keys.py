"""Names of the keys in Redis, all below one prefix.

    <prefix>:meta             hash   format, layout, buckets; token, name, epoch, beat and last
                                     commit of the broker, the servers' runs when it began, and its
                                     token when it had adopted everything
    <prefix>:{<prefix>:meta}:i  string  in a Redis Cluster, the commit that was begun last
                                     (`intent`), in the slot of the key above
    <prefix>:{<bucket>}:b     hash   o, e: token and epoch of the bucket's owner; d, r: commit of
                                     the last drop of a session, of the last change of retained
                                     messages
    <prefix>:{<bucket>}:c     set    client ids of the bucket's sessions
    <prefix>:{<bucket>}:r     hash   retained messages by topic
    <prefix>:{<bucket>}:l     hash   in a Redis Cluster, token and last commit of the broker
    <prefix>:{<bucket>}:-     never exists; prevents functions from running in a half-moved slot
    <prefix>:{<bucket>}:o:<client id>  string  the session's state and owner (`values`)
    <prefix>:{<bucket>}:s:<client id>  hash    the other fields of the session (`changes`)
    <prefix>:{<bucket>}:q:<client id>  stream or sorted set  its queue (`queues`)
    <prefix>:{<bucket>}:m:<position>:<client id>  string  an entry, in layout `zset`
    <prefix>:{<bucket>}:u:<client id>  hash    packet identifiers of released positions

A bucket is the CRC-16 of the client id (of the topic, for retained messages) modulo BUCKETS. It is
the hash tag of its keys, so they are in one slot of a Redis Cluster. No hash tag has a client id,
since that may be any text.
"""

from binascii import crc_hqx
from typing import Final, final

BUCKETS: Final = 1_024
"""Number of buckets of a store, which is stored in it when it is created."""


def bucket_of(name: bytes) -> int:
    """Return the bucket of a client id or topic, 0 to BUCKETS - 1."""
    return crc_hqx(name, 0) % BUCKETS


@final
class KeyNames:
    __slots__ = ("_buckets", "intent", "meta")

    def __init__(self, prefix: str) -> None:
        self.meta = f"{prefix}:meta".encode()
        self.intent = f"{prefix}:{{{prefix}:meta}}:i".encode()
        self._buckets = [f"{prefix}:{{{number:03x}}}:".encode() for number in range(BUCKETS)]

    def bucket(self, number: int) -> tuple[bytes, bytes, bytes]:
        """Return the keys of a bucket: owner, client ids, retained messages."""
        start = self._buckets[number]
        return start + b"b", start + b"c", start + b"r"

    def mark(self, number: int) -> tuple[bytes, bytes]:
        """Return the keys of a bucket in a Redis Cluster: last commit, and the one never there."""
        start = self._buckets[number]
        return start + b"l", start + b"-"

    def bucket_start(self, number: int) -> bytes:
        return self._buckets[number]

    def session(self, client_id: bytes) -> tuple[bytes, bytes, bytes]:
        """Return the keys of a session: fields, queue, released positions."""
        start = self._buckets[crc_hqx(client_id, 0) % BUCKETS]
        return start + b"s:" + client_id, start + b"q:" + client_id, start + b"u:" + client_id

    def state(self, client_id: bytes) -> bytes:
        return self._buckets[crc_hqx(client_id, 0) % BUCKETS] + b"o:" + client_id

    def message(self, client_id: bytes, pos: int) -> bytes:
        start = self._buckets[crc_hqx(client_id, 0) % BUCKETS]
        return b"%sm:%d:%s" % (start, pos, client_id)
