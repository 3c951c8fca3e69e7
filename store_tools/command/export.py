"""Export of a store as JSON Lines (docs/explain/durability.md describes the fields).

Bytes are base64, times are Unix time in seconds; an absent value is null. Names are unchanged, with
non-ASCII characters escaped.
"""

import json
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import chain
from typing import Any, Final

from flowguard.node.peers.messages import decode_forwarded
from flowguard.records import (
    NEVER_S,
    Delivery,
    QueueEntry,
    SinkKind,
    WillRecord,
    is_group,
    label_of,
    sink_of,
)
from flowguard.stores.rocks.layouts.session_codec import decode_retained
from flowguard.types import NO_PROPERTIES, Properties, Publish
from store_tools.rocks.reader import StoredSession, StoreReader

PROGRESS_LINES: Final = 1_000
Record = dict[str, Any]


def export_lines(
    readers: Sequence[StoreReader], progress: Callable[[int, int], None]
) -> Iterator[str]:
    """Yield the lines; the last has the number of others. Without it the export is incomplete."""
    engines = [reader.engine for reader in readers]
    estimate = sum(each.queues.rows_estimate + each.retained.rows_estimate for each in engines)
    count = 0
    for record in chain.from_iterable(map(_records, readers)):
        yield json.dumps(record, separators=(",", ":")) + "\n"
        count += 1
        if count % PROGRESS_LINES == 0:
            progress(count, max(count, estimate))
    yield json.dumps({"type": "end", "records": count}, separators=(",", ":")) + "\n"


def _records(reader: StoreReader) -> Iterator[Record]:
    found = reader.format
    yield {
        "type": "store",
        "format": found.version,
        "layout": found.layout,
        "creator": found.creator,
        "node": reader.identity.node.hex(),
        "seen": {node.hex(): hlc.hex() for node, hlc in reader.identity.seen.items()},
    }
    for session in reader.sessions():
        if sink_of(session.client_id)[0] is SinkKind.PEER:
            yield from _of_peer(reader, session)
        elif is_group(session.client_id):
            yield from _of_group(reader, session)
        else:
            yield from _of_session(reader, session)
    for _, row in reader.engine.retained.rows():
        message, expires_at_s = decode_retained(row)
        yield {
            "type": "retained",
            "expires_at_s": _instant(expires_at_s),
            "message": message_fields(message),
        }


def _of_session(reader: StoreReader, session: StoredSession) -> Iterator[Record]:
    record = reader.record(session)
    client_id = record.client_id
    yield {
        "type": "session",
        "client_id": client_id,
        "expiry_interval_s": record.expiry_interval_s,
        "ends_at_s": record.ends_at_s,
        "next_pos": record.next_pos,
        "sent_pos": record.sent_pos,
        "will": None if record.will is None else _will(record.will),
        **({"user": record.user} if record.user else {}),
    }
    for filter, options in record.subscriptions.items():
        after = record.retained_after.get(filter)
        owed = {} if after is None else {"retained_after": after}
        subscription = {"client_id": client_id, "filter": filter, **asdict(options), **owed}
        yield {"type": "subscription", **subscription}
    for packet_id in sorted(record.inbound_ids):
        yield {"type": "inbound", "client_id": client_id, "packet_id": packet_id}
    for entry in reader.entries(session):
        yield _entry(client_id, entry, record.sent_pos)


def _of_group(reader: StoreReader, session: StoredSession) -> Iterator[Record]:
    filter = label_of(session.client_id)
    yield {"type": "group", "filter": filter, "next_pos": session.queue.next_pos}
    for entry in reader.entries(session):
        delivery = entry.delivery
        found: Record = {"type": "entry", "filter": filter, "pos": entry.pos}
        if delivery is None:
            yield {**found, "status": "moved"}
        else:
            yield {**found, "status": "waiting", **_delivery(delivery)}


def _of_peer(reader: StoreReader, session: StoredSession) -> Iterator[Record]:
    peer = label_of(session.client_id)
    yield {"type": "peer", "peer": peer, "next_pos": session.queue.next_pos}
    for entry in reader.entries(session):
        assert entry.delivery is not None
        owed = decode_forwarded(entry.delivery.message.payload)
        yield {
            "type": "entry",
            "peer": peer,
            "pos": entry.pos,
            "status": "owed",
            "expires_at_s": _instant(owed.expires_at_s),
            "message": message_fields(owed.message),
        }


def _will(will: WillRecord) -> Record:
    return {"delay_s": will.delay_s, "message": message_fields(will.message)}


def _entry(client_id: str, entry: QueueEntry, sent_pos: int) -> Record:
    found: Record = {
        "type": "entry",
        "client_id": client_id,
        "pos": entry.pos,
        "packet_id": entry.packet_id,
    }
    delivery = entry.delivery
    if delivery is None:
        return {**found, "status": "released"}
    return {
        **found,
        "status": "sent" if entry.pos <= sent_pos else "waiting",
        **_delivery(delivery),
    }


def _delivery(delivery: Delivery) -> Record:
    return {
        "qos": delivery.qos,
        "retain": delivery.retain,
        "identifiers": list(delivery.identifiers),
        "expires_at_s": _instant(delivery.expires_at_s),
        "message": message_fields(delivery.message),
    }


def message_fields(message: Publish) -> Record:
    """Return the fields of a PUBLISH as received, with its properties."""
    return {
        "topic": message.topic,
        "payload": _text(message.payload),
        "qos": message.qos,
        "retain": message.retain,
        "properties": _properties(message.properties),
    }


def _properties(properties: Properties) -> Record:
    if properties is NO_PROPERTIES:
        return {}
    found = {name: value for name, value in asdict(properties).items() if value not in (None, ())}
    return {
        name: _text(value) if isinstance(value, bytes) else value for name, value in found.items()
    }


def _text(data: bytes) -> str:
    return b64encode(data).decode()


def _instant(at_s: float) -> float | None:
    return None if at_s == NEVER_S else at_s
