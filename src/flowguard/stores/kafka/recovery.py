"""Recovery: reads the state of a queue from its topic, at the start and after retention."""

from collections.abc import Iterator
from typing import Final

from flowguard.stores.kafka.connection.errors import RetentionError
from flowguard.stores.kafka.connection.reader import KafkaReader
from flowguard.stores.kafka.queue import ApplicationQueue, QueueRecord, decode_record

READ_COUNT: Final = 500


def restore(reader: KafkaReader, queue: ApplicationQueue, start: int, end: int) -> int:
    """Read the state that is not in the window. Return the number of lost messages. `start` is the
    topic's first offset, `end` the one after its last."""
    window, lost = queue.window, 0
    # Each record since the last commit took at least one position.
    window.next_pos += max(0, end - window.end)
    window.end = end
    if window.floor < start:
        lost = _lose(reader, queue, start)
    if window.floor >= end:
        window.floor = end
        if end > start:
            last = record_at(reader, queue, end - 1)
            queue.total_bytes, queue.owed_pos = last.total_bytes, last.owed_pos
        return lost
    first, last = (record_at(reader, queue, offset) for offset in (window.floor, end - 1))
    window.next_pos = max(window.next_pos, last.pos + 1)
    queue.total_bytes, queue.owed_pos = last.total_bytes, last.owed_pos
    is_dense = last.pos - first.pos == end - 1 - window.floor
    marked = max((*window.settled, *window.released), default=window.floor)
    upto = marked + 1 if is_dense else end
    queue.restore(_records(reader, queue, window.floor, upto))
    return lost


def pass_retention(reader: KafkaReader, queue: ApplicationQueue, error: RetentionError) -> int:
    """Handle a deleted record: retention deleted it and all before it, or the topic was recreated.
    Return the number of lost messages. Raises `error` if the server has the record after all."""
    start, end = reader.ends([queue.topic])[queue.topic]
    if start > queue.window.floor:
        return _lose(reader, queue, start)
    if end <= queue.window.floor:
        return queue.start_over(end)
    raise error


def record_at(reader: KafkaReader, queue: ApplicationQueue, offset: int) -> QueueRecord:
    ((_, value), *_) = reader.read(queue.topic, offset, 1)
    return decode_record(value)


def _lose(reader: KafkaReader, queue: ApplicationQueue, start: int) -> int:
    """Skip the records before `start`, which retention deleted. Return the number of unsettled
    messages among them."""
    floor_bytes = queue.total_bytes
    if start < queue.window.end:
        first = record_at(reader, queue, start)
        floor_bytes = first.total_bytes - first.delivery.size_bytes
    queue.unsaved_count += 1
    return queue.window.skip_to(start, floor_bytes)


def _records(
    reader: KafkaReader, queue: ApplicationQueue, offset: int, until: int
) -> Iterator[tuple[int, QueueRecord]]:
    while offset < until:
        for found, value in reader.read(queue.topic, offset, READ_COUNT):
            if found < until:
                yield found, decode_record(value)
            offset = found + 1
