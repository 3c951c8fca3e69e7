"""Brokers that every measurement must find out: stopped, paused, killed."""

import os

import trio

from tests.attacks.attack import Finding, Size
from tests.attacks.probes import LATE_S, answers, pulse, serves
from tests.attacks.victim import victim


async def nobody_home(size: Size) -> Finding:
    """A broker that is stopped, and answers no client."""
    async with victim(size.folder) as broker:
        broker.stop()
        found = await answers(broker, within_s=0.5)
    return Finding(found, "answered" if found else "not answered")


async def away_for_a_while(size: Size) -> Finding:
    """A broker that answers all clients, but takes twice as long as allowed."""
    async with victim(size.folder) as broker, pulse(broker) as beating:
        broker.stop()
        await trio.sleep(2 * LATE_S + 2 * beating.late_max_s)
        broker.go_on()
    return beating.in_time(Size(size.folder))


async def killed(size: Size) -> Finding:
    """A broker that has ended."""
    async with victim(size.folder) as broker:
        os.kill(broker.pid, 9)
        await broker.ended()
        return await serves(broker)
