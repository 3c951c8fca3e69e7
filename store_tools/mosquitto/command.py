"""`flowguard import`: converts a configuration of Mosquitto to one of flowguard."""

from pathlib import Path
from typing import Annotated, Any

import typer

from flowguard.cli.console import plain, refused, shown
from flowguard.config import Settings
from flowguard.lines import count
from flowguard.section import with_paths
from store_tools.mosquitto.conf import MosquittoImport


def import_conf(
    conf: Annotated[Path, typer.Argument(metavar="MOSQUITTO_CONF", help="File for mosquitto -c.")],
    out: Annotated[
        Path | None, typer.Option(help="File to write; default: standard output.")
    ] = None,
) -> None:
    """Translate a mosquitto.conf into settings.

    It reports the outcome of each line. The exit code is 1 if a listener is left out. An existing
    file is not overwritten. `flowguard check` judges the result.
    """
    try:
        found = MosquittoImport(conf.read_bytes(), str(conf))
    except OSError as error:
        raise refused(f"cannot read {conf}: {error.strerror}", code=2) from error
    said = plain(stderr=True)
    for remark in found.remarks:
        verdict = "taken" if remark.taken else "NOT TAKEN"
        what = f"{shown(remark.text)}: " if remark.text else ""
        said.print(f"{remark.place}: {what}{verdict}: {remark.said}")
    not_taken = sum(not remark.taken for remark in found.remarks)
    said.print(f"{count(len(found.remarks), 'remark')}, {not_taken} of them on what was not taken")
    if not found.settings["network.listeners"]:
        raise refused("nothing is written: every listener is left out")
    _write(found, out)
    if found.left_out:
        raise refused("a listener is left out: its lines are NOT TAKEN above")
    if out is not None:
        said.print(f"next: flowguard check {out}")


def _write(found: MosquittoImport, out: Path | None) -> None:
    if out is None:
        typer.echo(found.toml(), nl=False)
        return
    if out.parent.resolve() != Path.cwd():
        _make_paths_absolute(found)
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(found.toml())
    except OSError as error:
        raise refused(f"cannot write {out}: {error.strerror}", code=2) from error


def _make_paths_absolute(found: MosquittoImport) -> None:
    """Make relative paths absolute, because they would begin at the folder of the new file."""
    for key, value in found.settings.items():
        section, _, name = key.partition(".")
        placed: Any = with_paths(
            Settings, {section: {name: value}}, lambda text: str(Path(text).absolute())
        )
        found.settings[key] = placed[section][name]
