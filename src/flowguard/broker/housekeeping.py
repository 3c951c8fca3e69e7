"""The 100 ms tick: deadlines, load signals, `$SYS`."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from secrets import SystemRandom

import trio

from flowguard.broker.committer import Committer
from flowguard.broker.overload_log import OverloadLog
from flowguard.broker.reactor import Reactor
from flowguard.flow.signals import TICK_S
from flowguard.node.node import Node
from flowguard.node.sys_topics import SysTopics
from flowguard.stores import Store

MEMORY_SHARE = 0.75
"""Of what the machine or container has: the rest is the kernel's sockets."""
JITTER = (0.9, 1.1)
"""Of a tick: so that the nodes of a cluster do not march in step."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)

Onlooker = Callable[[float, int], None]
"""Called after each tick with the time and the resident set, bytes."""


def memory_limit_bytes() -> int:
    """What the process may hold: a share of physical memory or of the container's limit."""
    limit = PAGE_BYTES * os.sysconf("SC_PHYS_PAGES")
    for path in CGROUP_LIMITS:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            limit = min(limit, int(text))
    return int(MEMORY_SHARE * limit)


@contextmanager
def memory_gauge() -> Iterator[Callable[[], int]]:
    """Reads the resident set, bytes; opened once: later there may be no descriptor for it."""
    with Path("/proc/self/statm").open("rb", buffering=0) as statm:
        yield lambda: int(os.pread(statm.fileno(), 128, 0).split()[1]) * PAGE_BYTES


async def keep_house(
    node: Node,
    store: Store,
    committer: Committer,
    reactor: Reactor,
    clock: Callable[[], float],
    onlookers: Sequence[Onlooker],
) -> None:
    """Tick until cancelled; `onlookers` may change meanwhile, and must not raise."""
    jitter = SystemRandom().uniform
    sys_topics = SysTopics(node, clock())
    overload_log = OverloadLog(node, clock())
    sys_due_s = clock()
    with memory_gauge() as resident_bytes:
        while True:
            now_s = clock()
            memory_bytes = resident_bytes()
            node.protection.observe_memory(memory_bytes)
            node.store_load = store.load()
            node.protection.observer.store(node.store_load.state)
            node.tick(now_s)
            overload_log.tick(now_s)
            reactor.sweep(now_s)
            if now_s >= sys_due_s:
                sys_topics.publish(now_s)
                sys_due_s = now_s + node.settings.node.sys_interval_s
            reactor.settle(now_s)
            if node.has_work or node.pages.ready:
                reactor.wake()
            committer.tick()
            for look in tuple(onlookers):
                look(now_s, memory_bytes)
            await trio.sleep(TICK_S * jitter(*JITTER))
