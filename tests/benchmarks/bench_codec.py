"""What the codec costs: `.venv/bin/python -m tests.benchmarks.bench_codec`.

Decoding: 64 KiB of the same packet are fed and drained by `next()`, then by `next_batch()`,
microseconds per packet, the best of 30 rounds; the feed and the last call, which finds nothing, are
in it. Encoding:
microseconds per call. The machine decides the figures; compare only lines of one run.
"""

import sys
import timeit
from collections.abc import Callable
from time import perf_counter

from flowguard.codec import (
    Connect,
    Packet,
    PacketDecoder,
    Pingreq,
    Puback,
    Pubrec,
    Subscribe,
    encode,
    puback_frame,
    publish_frame,
)
from flowguard.types import NO_PROPERTIES, Properties, Publish, SubscriptionOptions

CHUNK_BYTES = 65_536
MAX_PACKET_SIZE = 268_435_460
TOPIC = "sensors/building-7/temperature"
QOS_0 = Publish(TOPIC, b"x" * 32)
QOS_1 = Publish(TOPIC, b"x" * 32, 1, packet_id=77)
LARGE = Publish(TOPIC, b"x" * 1000, 1, packet_id=77)
USER = Properties(message_expiry_interval=60, user_properties=(("trace", "0af7651916cd43dd"),))


def say(name: str, value: float, unit: str = "us") -> None:
    sys.stdout.write(f"{name:<68} {value:>12,.3f} {unit}\n")


def decoding(name: str, packet: Packet, version: int) -> None:
    frame = encode(packet, version)
    count = CHUNK_BYTES // len(frame)
    drain(name, frame * count, count, version)


def drain(name: str, chunk: bytes, count: int, version: int) -> None:
    decoder = PacketDecoder(MAX_PACKET_SIZE, version)
    one_s = batch_s = 1e9
    for _ in range(30):
        start_s = perf_counter()
        decoder.feed(chunk)
        while decoder.next() is not None:
            pass
        one_s = min(one_s, perf_counter() - start_s)
        start_s = perf_counter()
        decoder.feed(chunk)
        while decoder.next_batch(100):
            pass
        batch_s = min(batch_s, perf_counter() - start_s)
    say(f"decode {name}, next()", one_s / count * 1e6)
    say(f"decode {name}, next_batch(100)", batch_s / count * 1e6)


def clock(name: str, call: Callable[[], object], calls: int = 50_000) -> None:
    best_s = min(timeit.repeat(call, number=calls, repeat=5))
    say(name, best_s / calls * 1e6)


def bench_decoding() -> None:
    for version in (4, 5):
        decoding(f"PUBLISH QoS 0, v{version}", QOS_0, version)
        decoding(f"PUBLISH QoS 1, v{version}", QOS_1, version)
        decoding(f"PUBLISH QoS 1 of 1,000 bytes, v{version}", LARGE, version)
        decoding(f"PUBACK, v{version}", Puback(77), version)
        decoding(f"PUBREC, v{version}", Pubrec(77), version)
        decoding(f"PINGREQ, v{version}", Pingreq(), version)
    with_properties = Publish(TOPIC, b"x" * 32, 1, packet_id=77, properties=USER)
    decoding("PUBLISH QoS 1 with two properties, v5", with_properties, 5)
    alias = Publish("", b"x" * 32, properties=Properties(topic_alias=1))
    decoding("PUBLISH QoS 0 by alias, v5", alias, 5)
    decoding("SUBSCRIBE", Subscribe(1, (("a/+/b", SubscriptionOptions(1)),)), 5)
    names = [f"sensors/{number}" for number in range(20_000)]
    stream = b"".join(encode(Publish(name, b"x" * 32), 4) for name in names)
    drain("PUBLISH QoS 0, each to a topic never seen, v4", stream, len(names), 4)
    frame = encode(Connect("client-1234", username="u", password=b"p"), 5)

    def connect() -> Packet | None:
        decoder = PacketDecoder(MAX_PACKET_SIZE)
        decoder.feed(frame)
        return decoder.next()

    clock("decode CONNECT with a new decoder, v5", connect)


def bench_pieces() -> None:
    frame = encode(QOS_1, 4)
    decoder = PacketDecoder(MAX_PACKET_SIZE, 4)

    def single() -> Packet | None:
        decoder.feed(frame)
        packet = decoder.next()
        decoder.next()
        return packet

    clock("feed one PUBLISH QoS 1, next, next", single)
    first, second = frame[:9], frame[9:]

    def halves() -> Packet | None:
        decoder.feed(first)
        decoder.next()
        decoder.feed(second)
        return decoder.next()

    clock("one PUBLISH QoS 1 in two pieces", halves)
    size = 32 * 1024 * 1024
    data = encode(Publish(TOPIC, bytes(size)), 4)
    pieces = [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)]
    start_s = perf_counter()
    for piece in pieces:
        decoder.feed(piece)
        decoder.next()
    say("one PUBLISH of 32 MiB in chunks of 64 KiB", (perf_counter() - start_s) * 1e3, "ms")


def bench_lane() -> None:
    chunk = (encode(QOS_1, 4) + encode(Pingreq(), 4)) * 1000
    best_s = 1e9
    for _ in range(10):
        decoder = PacketDecoder(MAX_PACKET_SIZE, 4)
        start_s = perf_counter()
        decoder.feed(chunk)
        while decoder.next_control() is not None:
            pass
        best_s = min(best_s, perf_counter() - start_s)
    say("control lane, PUBLISH and PINGREQ in turn, per packet", best_s / 2000 * 1e6)


def bench_encoding() -> None:
    for version in (4, 5):
        for qos in (0, 1):
            clock(
                f"publish_frame QoS {qos}, v{version}",
                lambda v=version, q=qos: publish_frame(QOS_1, v, q, False, NO_PROPERTIES),  # type: ignore[misc]
            )
    clock("publish_frame with two properties, v5", lambda: publish_frame(QOS_1, 5, 1, False, USER))
    clock("puback_frame", lambda: puback_frame(77))
    clock("encode PUBLISH QoS 1, v4", lambda: encode(QOS_1, 4))
    clock("encode PUBACK, v4", lambda: encode(Puback(77), 4))


def main() -> None:
    bench_decoding()
    bench_pieces()
    bench_lane()
    bench_encoding()


if __name__ == "__main__":
    main()
