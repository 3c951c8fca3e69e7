"""Makes the data directory of today's format: python -m tests.flowguard.stores.rocks.golden

Once per format version and layout: an existing one is never made again, because its purpose is that
later versions read it. The directory is that of a broker that was killed: some of it in tables,
some in the log.
"""

import io
import shutil
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

from flowguard.records import (
    NEVER_S,
    Append,
    Delivery,
    DropSubscription,
    PutInbound,
    PutRetained,
    PutSession,
    PutSubscription,
    PutWill,
    Release,
    Sent,
    Settle,
    StoreOp,
    WillRecord,
    packet_id_of,
)
from flowguard.stores.rocks.format import MAJOR, MINOR
from flowguard.stores.rocks.store import LAYOUTS
from flowguard.types import Properties, Publish, SubscriptionOptions
from tests.flowguard.stores.rocks.golden.archive import FOLDER, WALL_S, exported, open_store

PROPERTIES = Properties(
    content_type="text/é",
    correlation_data=b"\xfe\x00",
    response_topic="r",
    user_properties=(("k", "v"), ("k", "w")),
)


LEFT_OUT = ("LOG*", "LOCK", "OPTIONS*", "holder")
"""They have paths and times, no data."""


def delivery(number: int, qos: int = 1, expires_at_s: float = NEVER_S) -> Delivery:
    payload = b"%d" % number * (3_000 if number == 4 else 1)
    message = Publish("t/é", payload, qos, properties=PROPERTIES)
    return Delivery(message, qos, number == 2, (1, 9), expires_at_s)


def early() -> list[StoreOp]:
    """Ends in tables."""
    will = WillRecord(Publish("w", b"gone", 1, True), 5)
    return [
        PutSession("reader", 0xFFFF_FFFF, None),
        PutSession("away", 3_600, WALL_S + 60.5),
        PutSubscription("reader", "t/+", SubscriptionOptions(2, True, True, 2, 77)),
        PutSubscription("reader", "gone", SubscriptionOptions(1)),
        PutSubscription("away", "$share/g/t/#", SubscriptionOptions(1)),
        PutWill("reader", will),
        PutInbound("away", 65_535),
        PutRetained(Publish("kept", b"\x00\xff", 1, True, properties=PROPERTIES), WALL_S + 1e6),
        *(Append("reader", pos, delivery(pos, qos=1 + pos % 2)) for pos in range(1, 6)),
    ]


def late(shared: Delivery) -> list[StoreOp]:
    """Stays in the log; `shared` goes to both."""
    return [
        DropSubscription("reader", "gone"),
        Sent("reader", 4),
        Release("reader", 3, packet_id_of(3, 2), delivery(3, qos=2)),
        Append("reader", 6, shared),
        Append("away", 1, shared),
        Append("away", 3, delivery(7, expires_at_s=WALL_S + 1e9)),
        PutRetained(Publish("late", b"r", 0, True), NEVER_S),
    ]


def make(layout: str, archive: Path) -> None:
    with TemporaryDirectory() as name:
        folder, copy = Path(name) / "store", Path(name) / "copy"
        store = open_store(folder, layout)
        store.commit(early())
        store.close()
        store = open_store(folder, layout)
        store.commit(late(Delivery(Publish("t/x", b"x" * 2_000, 1), 1, False, (), NEVER_S)))
        store.commit([Settle("reader", 1), Settle("reader", 2)])
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(*LEFT_OUT))
        store.close()
        with tarfile.open(archive, "w:xz") as tar:
            for path in sorted(copy.iterdir()):
                info = tarfile.TarInfo(path.name)
                data = path.read_bytes()
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        archive.with_suffix("").with_suffix(".jsonl").write_text(exported(copy))


for each in LAYOUTS:
    target = FOLDER / f"{MAJOR}-{MINOR}-{each}.tar.xz"
    if target.exists():
        sys.stderr.write(f"{target.name} is there already\n")
    else:
        make(each, target)
