"""Attacks on deadlines: timers that fail, handshakes that never end, commits that take too long."""

import time

import trio

from flowguard.cli.ask import ask
from flowguard.codec.packets import Will
from flowguard.types import Properties, Publish
from tests.attacks.attack import Attack, Finding, Size
from tests.attacks.victim import ANSWER_S, victim

# --- wills without a right -----------------------------------------------------------------------

WILLS = 200
DELAY_S = 2
LATE_S = 4.0
"""A keep-alive of one second is over after 1.5 s, and half a second later its will is there."""
RULES = '[roles.guest]\nanonymous = true\npublish = ["kept", "{}"]\nreceive = ["#"]\n'


async def wills_withdrawn(size: Size) -> Finding:
    """A reload withdraws the right to delayed wills that are armed."""
    return await delayed_wills(size, "nothing")


async def wills_kept(size: Size) -> Finding:
    """The control: it does not, and they all come."""
    return await delayed_wills(size, "withdrawn")


async def delayed_wills(size: Size, topic: str) -> Finding:
    rules = size.folder / "acl.toml"
    rules.write_text(RULES.format("withdrawn"))
    settings = {"network": {"acl_file": str(rules), "allow_anonymous": True}}
    async with victim(size.folder, settings) as broker:
        watcher = await broker.connect("watcher")
        await watcher.subscribe("#", 0)
        for number in range(size.of(WILLS, least=5)):
            will = Will("withdrawn", b"", properties=Properties(will_delay_interval=DELAY_S))
            wire = await broker.connect(f"c{number}", durable=True, will=will)
            await wire.close()
        rules.write_text(RULES.format(topic))
        assert (await trio.to_thread.run_sync(ask, broker.http, "/reload", {}, ANSWER_S))[0] == 200
        await trio.sleep(DELAY_S)
        began_s = time.monotonic()
        await broker.connect("silent", keep_alive_s=1, will=Will("kept", b""))
        came = 0
        while (await watcher.expect(Publish)).topic != "kept":
            came += 1
        took_s = time.monotonic() - began_s
    holds = not came and (took_s <= LATE_S or not size.is_full)
    return Finding(holds, f"{came} came without a right, another's came after {took_s:.1f} s")


ATTACKS = [
    Attack(
        "wills-withdrawn",
        f"none of {WILLS} comes, and another client's keep-alive ends within {LATE_S:.0f} s",
        wills_withdrawn,
        wills_kept,
    ),
]
