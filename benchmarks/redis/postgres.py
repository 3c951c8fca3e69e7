"""TBMQ 1.x's two tables on PostgreSQL, as its authors describe them: what Redis was chosen over.

`per_message`: insert, new counters of the session, and commit, for each message; so the deletes.
Else all messages of a batch go in one transaction and one pipeline, and a client's counters are
written once for each batch.
"""

from collections.abc import Sequence
from typing import Any, Final

Placed = tuple[str, int]
"""Client id and serial number."""

TABLES: Final = """
CREATE TABLE device_session_ctx (
  client_id varchar(255) PRIMARY KEY, last_updated_time bigint NOT NULL,
  last_serial_number bigint, last_packet_id integer);
CREATE TABLE device_publish_msg (
  client_id varchar(255) NOT NULL, serial_number bigint NOT NULL, topic varchar NOT NULL,
  time bigint NOT NULL, packet_id integer, packet_type varchar(255), qos integer NOT NULL,
  payload bytea NOT NULL, user_properties varchar, retain boolean, msg_expiry_interval integer,
  payload_format_indicator integer, content_type varchar(255), response_topic varchar(255),
  correlation_data bytea, PRIMARY KEY (client_id, serial_number));
CREATE INDEX idx_device_publish_msg_packet_id ON device_publish_msg (client_id, packet_id);
"""
INSERT: Final = """
INSERT INTO device_publish_msg
  (client_id, serial_number, topic, time, packet_id, packet_type, qos, payload, retain)
VALUES (%s, %s, %s, %s, %s, 'PUBLISH', 1, %s, false)
"""
COUNT: Final = """
INSERT INTO device_session_ctx VALUES (%s, %s, %s, %s) ON CONFLICT (client_id) DO UPDATE SET
  last_updated_time = EXCLUDED.last_updated_time,
  last_serial_number = EXCLUDED.last_serial_number, last_packet_id = EXCLUDED.last_packet_id
"""
DELETE: Final = "DELETE FROM device_publish_msg WHERE client_id = %s AND packet_id = %s"
FETCH: Final = """
SELECT topic, packet_id, qos, payload, retain FROM device_publish_msg
WHERE client_id = %s ORDER BY serial_number LIMIT 10000
"""


class Tables:
    """The two tables, through one connection."""

    def __init__(self, where: str, topic: str, payload: bytes, *, per_message: bool) -> None:
        import psycopg

        self._connection: Any = psycopg.connect(where)
        self._topic = topic
        self._payload = payload
        self._per_message = per_message
        self._connection.execute(TABLES)
        self._connection.commit()

    def queue(self, batch: Sequence[Placed], now_ms: int) -> None:
        rows = [(name, n, self._topic, now_ms, n % 65_536, self._payload) for name, n in batch]
        last = {name: (name, now_ms, n, n % 65_536) for name, n in batch}
        if not self._per_message:
            with self._connection.pipeline(), self._connection.cursor() as cursor:
                cursor.executemany(INSERT, rows)
                cursor.executemany(COUNT, list(last.values()))
            self._connection.commit()
            return
        for row in rows:
            name, n = row[:2]
            self._connection.execute(INSERT, row)
            self._connection.execute(COUNT, (name, now_ms, n, n % 65_536))
            self._connection.commit()

    def settle(self, batch: Sequence[Placed]) -> None:
        rows = [(name, n % 65_536) for name, n in batch]
        if not self._per_message:
            with self._connection.pipeline(), self._connection.cursor() as cursor:
                cursor.executemany(DELETE, rows)
            self._connection.commit()
            return
        for row in rows:
            self._connection.execute(DELETE, row)
            self._connection.commit()

    def fetch(self, client_id: str) -> int:
        """All that is queued for one client."""
        return len(self._connection.execute(FETCH, (client_id,)).fetchall())

    def close(self) -> None:
        self._connection.close()
