"""`flowguard demo`: a flash crowd against a small broker, live in the terminal, under a minute."""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from subprocess import DEVNULL
from typing import Annotated, Any, final

import structlog
import trio
import typer
from rich.console import Console
from rich.live import Live

from flowguard.app.broker import build_broker
from flowguard.broker.memory import bounds_of
from flowguard.broker.server import Running, listen
from flowguard.broker.sockets.listening import Doorway
from flowguard.cli.descriptors import OWN_DESCRIPTORS, use_all_descriptors
from flowguard.cli.remote import top_screen
from flowguard.cli.signals import on_signals
from flowguard.config import Settings
from flowguard.lines import count
from flowguard.ops.status import status_of
from loadgen.demo.broker import CLIENT_TIMEOUT_S, DemoStore, demo_settings, lateness_s, sample
from loadgen.demo.screen import DemoHistory, line, screen
from loadgen.demo.summary import DemoOutcome, show_summary

START_S = 60.0
"""Maximum time until the first storm publishes, on a busy machine; else it takes a second or
two."""
CALM_S = 10.0
"""Maximum time that the first act waits for open windows, on a busy machine."""
CROWD_S = 180.0
"""Maximum time until the crowd is connected, on a busy machine; else it takes some 10 s."""
RECOVERY_S = 30.0
"""Maximum time of the last act; else it ends after some 20 s."""
RESULTS_S = 60.0
"""Maximum time of the storms to disconnect and write their results; some need a second."""
SAMPLE_S = 0.1
FRAME_S = 0.2
LINE_S = 1.0
OUTSTANDING = 100


@dataclass(frozen=True, slots=True)
class DemoPlan:
    clients: int
    publishers: int
    rate_per_s: float
    calm_s: float


@final
class Demo:
    """The broker in this process, and storms in processes of their own, so that two cores are
    used."""

    def __init__(self, plan: DemoPlan, settings: Settings, console: Console, folder: Path) -> None:
        self._plan = plan
        self._settings = settings
        self._console = console
        self._folder = folder
        everybody = plan.clients + 2 * plan.publishers
        self.history = DemoHistory(plan.publishers, everybody, settings.flow.window_max)
        self._top = top_screen.StatusHistory("")
        self.interrupted = False
        self._started_s = trio.current_time()
        self._prelude_over = trio.Event()
        self._curtain = trio.CancelScope()
        """Cancelling it ends the show, before the storms disconnect."""
        self._broker: Running

    async def run(self) -> DemoOutcome | None:
        """Run the three acts. Return None if interrupted."""
        bounds = bounds_of(self._settings)
        listeners = [Doorway(listen("127.0.0.1", 0))]
        broker = build_broker(bounds, data=self._folder, store=DemoStore(), listeners=listeners)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(on_signals, partial(self._interrupt, nursery.cancel_scope))
            self._broker = await nursery.start(broker.run)
            nursery.start_soon(self._watch)
            await self._acts()
            nursery.cancel_scope.cancel()
        if self.interrupted:
            return None
        return DemoOutcome(self.history, self._read("traffic"), self._read("crowd"))

    def _interrupt(self, scope: trio.CancelScope) -> None:
        self.interrupted = True
        scope.cancel()

    async def _acts(self) -> None:
        plan, history = self._plan, self.history
        async with trio.open_nursery() as storms:
            words = f"pairs --pairs {plan.publishers} --rate {plan.rate_per_s}"
            words += f" --outstanding {OUTSTANDING} --seconds 600 --durable"
            traffic = await storms.start(self._storm, "traffic", words)
            await self._within(START_S, lambda: history.last.published > 0)
            await self._within(CALM_S, lambda: history.is_open)
            self._started_s = trio.current_time()
            history.begin(sample(self._broker, 0.0))
            self._prelude_over.set()
            await trio.sleep(plan.calm_s)
            words = f"connect --clients {plan.clients} --retry-max 4 --timeout {CLIENT_TIMEOUT_S}"
            words += " --connect-seconds 600 --hold 600 --durable"
            crowd = await storms.start(self._storm, "crowd", words)
            ended = crowd.poll
            await self._within(CROWD_S, lambda: history.in_s is not None or ended() is not None)
            await self._within(RECOVERY_S, lambda: history.open_s is not None)
            await trio.sleep(plan.calm_s / 2)
            self._curtain.cancel()
            storms.cancel_scope.deadline = trio.current_time() + RESULTS_S
            for process in (traffic, crowd):
                process.terminate()

    async def _within(self, limit_s: float, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds, at most `limit_s`."""
        until_s = trio.current_time() + limit_s
        while trio.current_time() < until_s:
            if self.history.samples and condition():
                return
            await trio.sleep(SAMPLE_S)

    # --- storms ------------------------------------------------------------------------------

    async def _storm(
        self,
        name: str,
        words: str,
        task_status: trio.TaskStatus[trio.Process] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Run `flowguard storm`, with its result in a file."""
        host, port = self._broker.address
        command = [sys.executable, "-m", "flowguard", "storm", f"{host}:{port}", *words.split()]
        command += ["--json", str(self._folder / f"{name}.json")]
        run = partial(
            trio.run_process,
            command,
            stdout=DEVNULL,
            stderr=DEVNULL,
            check=False,
            start_new_session=True,  # Ctrl-C is for us alone
        )
        await run(task_status=task_status)

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            result: dict[str, Any] = json.loads((self._folder / f"{name}.json").read_text())
        except (OSError, ValueError):
            return None
        return result

    # --- showing -----------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Sample and show until the demo ends."""
        with self._curtain:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._sample)
                await self._prelude_over.wait()
                if self._console.is_terminal:
                    await self._show_live()
                else:
                    await self._show_lines()

    async def _sample(self) -> None:
        while True:
            elapsed_s = trio.current_time() - self._started_s
            self.history.add(sample(self._broker, elapsed_s))
            await trio.sleep(SAMPLE_S)

    async def _show_live(self) -> None:
        with Live(console=self._console, auto_refresh=False) as live:
            while True:
                self._look()
                live.update(screen(self.history, self._top, self._console.width), refresh=True)
                await trio.sleep(FRAME_S)

    def _look(self) -> None:
        """Take the answer that `flowguard top` would get, once a second."""
        now_s = time.time()
        if self._top.now is None or now_s - self._top.now["now_s"] >= LINE_S:
            self._top.add(status_of(self._broker.node, now_s))

    async def _show_lines(self) -> None:
        while True:
            self._console.print(line(self.history), highlight=False, soft_wrap=True)
            await trio.sleep(LINE_S)


def demo(
    clients: Annotated[int, typer.Option(min=1, hidden=True)] = 2500,
    publishers: Annotated[int, typer.Option(min=1, hidden=True)] = 20,
    rate: Annotated[float, typer.Option(min=0.1, hidden=True)] = 30.0,
    calm: Annotated[float, typer.Option(min=0.0, hidden=True)] = 4.0,
) -> None:
    """Watch a small broker under a flash crowd.

    It runs on this machine, and takes under a minute.

    The exit code is 1 if a connection or an acknowledged message was lost.
    """
    console = Console()
    # Each client is a descriptor in this process, and another one in the process of the crowd.
    clients = min(clients, use_all_descriptors() - OWN_DESCRIPTORS - 2 * publishers)
    plan = DemoPlan(clients, publishers, rate, calm)
    console.print(
        f"A broker with small limits and a slow store, {count(publishers, 'publisher')}, "
        f"and soon {count(clients, 'client')} at once."
    )
    structlog.configure(processors=[_silence])
    settings = demo_settings(lateness_s())
    with tempfile.TemporaryDirectory(prefix="flowguard-demo-") as folder:
        outcome = trio.run(_run, plan, settings, console, Path(folder))
    if outcome is None:
        console.print("interrupted")
        raise typer.Exit(130)
    show_summary(outcome, console)
    raise typer.Exit(0 if outcome.promise_kept else 1)


async def _run(
    plan: DemoPlan, settings: Settings, console: Console, folder: Path
) -> DemoOutcome | None:
    return await Demo(plan, settings, console, folder).run()


def _silence(logger: object, name: str, event: structlog.types.EventDict) -> str:
    """Discard a log line: the screen shows everything."""
    raise structlog.DropEvent
