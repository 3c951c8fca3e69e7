"""Reloads: a running proxy reads certificates of listeners and limits again."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, final

import structlog
import trio

from broker_adapter.proxy.watch.face import Face
from flowguard.app.reloadable_files import differences, warn_of_expired
from flowguard.bounds import Bounds
from flowguard.broker.layers.certificates import expiries
from flowguard.broker.sockets.listening import Doorway
from flowguard.errors import ConfigError
from flowguard.ops.web.reload import Reloaded

LIVE: Final = frozenset(
    f"flow.{key}"
    for key in (
        *("window_max", "window_floor", "unfinished_max", "unfinished_bytes_max"),
        *("queue_objective_s", "loop_objective_s", "store_objective_s", "memory_objective"),
        *("connects_in_process_max", "connect_objective_s", "connect_buffer_max"),
        *("connect_buffer_bytes_max", "connect_patience_s", "connect_timeout_s"),
        "refusal_share",
    )
)
"""Settings that a reload changes; others need a restart."""

log = structlog.get_logger()


@final
class Reloads:
    def __init__(self, face: Face, doorways: Sequence[Doorway], read: Callable[[], Bounds]) -> None:
        """`read`: reads the settings as they are now; raises ConfigError."""
        self._face = face
        self._keepers = [doorway.tls for doorway in doorways if doorway.tls]
        self._read = read
        self._reloading = trio.Lock()
        """Held while files are read, so that those read last are in use."""
        face.door.certificates = expiries(face.settings.network)

    async def reload(self) -> Reloaded:
        """Read everything, and use it; after a ConfigError nothing has changed."""
        try:
            async with self._reloading:
                read = await self._reload()
        except ConfigError as error:
            why = str(error).replace("\n", "; ")
            log.error("reload failed; nothing has changed", why=why)
            raise
        shown = {key: value for key, value in read.items() if value}
        log.info("reloaded certificates and limits", **shown)
        return read

    async def on_signal(self) -> None:
        """Reload; errors are only logged."""
        with suppress(ConfigError):
            await self.reload()

    async def _reload(self) -> Reloaded:
        face = self._face
        in_thread = partial(trio.to_thread.run_sync, abandon_on_cancel=True)
        contexts = [await in_thread(keeper.read) for keeper in self._keepers]
        bounds = await in_thread(self._read)
        for keeper, context in zip(self._keepers, contexts, strict=True):
            keeper.use(context)
        changed = differences(face.bounds.asked, bounds.asked)
        limits = [key for key in changed if key in LIVE]
        if limits and face.core.use(bounds.settings.flow):
            face.bounds = bounds
        elif limits:  # Another policy has limits of its own.
            limits = []
        warn_of_expired(face.settings.network)
        face.door.certificates = expiries(face.settings.network)
        return Reloaded(
            certificates=len(contexts),
            users=0,
            keys=0,
            roles=0,
            limits=limits,
            needs_restart=[key for key in changed if key not in limits],
        )
