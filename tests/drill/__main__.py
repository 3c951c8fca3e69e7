"""`python -m tests.drill`, or `make drill`: run the drill, and write docs/operate/day-two.md."""

import tempfile
from pathlib import Path
from typing import Annotated, Final

import typer

from tests.drill.page import page
from tests.drill.proxy_steps import ProxyDrill
from tests.drill.scene import Scene
from tests.drill.steps import BrokerDrill
from tests.drill.store_steps import StoreDrill
from tests.drill.terminal import Terminal
from tests.support.reaper import reap_at_the_end

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "operate" / "day-two.md"


def main(
    clients: Annotated[int, typer.Option(min=10, help="Clients of the fleet.")] = 2_000,
    drain: Annotated[str, typer.Option(help="Time of the drain.")] = "20s",
    away_s: Annotated[float, typer.Option(help="Time without Redis, seconds.")] = 20.0,
    out: Annotated[Path, typer.Option(help="The page.")] = PAGE,
) -> None:
    """The exit code is 1 if a step does not find what it has to find."""
    reap_at_the_end()
    with tempfile.TemporaryDirectory() as name:
        terminal = Terminal(Path(name))
        scene = Scene(terminal)
        missing = scene.missing()
        if missing:
            raise SystemExit(f"missing: {', '.join(missing)}")
        scene.prepare()
        try:
            BrokerDrill(scene, clients, drain).run()
            StoreDrill(scene, away_s).run()
            ProxyDrill(scene, max(10, clients // 4), drain).run()
        except BaseException:
            typer.echo(page(terminal.steps, clients), err=True)
            raise
    out.write_text(page(terminal.steps, clients))
    typer.echo(f"{len(terminal.steps)} steps; {out}")


if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    app.command()(main)
    app()
