"""`flowguard import`: a configuration of Mosquitto becomes one of flowguard."""

from pathlib import Path
from typing import Annotated

import typer

from flowguard.cli.console import plain, refused
from flowguard.cli.mosquitto_conf import MosquittoImport


def import_conf(
    conf: Annotated[Path, typer.Argument(metavar="MOSQUITTO_CONF", help="As mosquitto -c.")],
    out: Annotated[Path | None, typer.Option(help="Where to write it; absent: stdout.")] = None,
) -> None:
    """Write settings that do what a mosquitto.conf does, and say of each line what became of it.

    An existing file is not written over. `flowguard check` judges the result.
    """
    try:
        found = MosquittoImport(conf.read_text(encoding="utf-8"))
    except OSError as error:
        raise refused(f"cannot read {conf}: {error.strerror}", code=2) from error
    except UnicodeDecodeError as error:
        raise refused(f"{conf} is no text", str(error), 2) from error
    said = plain(stderr=True)
    for remark in sorted(found.remarks, key=lambda each: each.line):
        place = f"{conf}:{remark.line}" if remark.line else str(conf)
        verdict = "taken" if remark.taken else "NOT TAKEN"
        what = f"{remark.text}: " if remark.text else ""
        said.print(f"{place}: {what}{verdict}: {remark.said}")
    left_out = sum(not remark.taken for remark in found.remarks)
    said.print(f"{len(found.remarks)} remarks, {left_out} of them on what was not taken")
    if out is None:
        typer.echo(found.toml(), nl=False)
        return
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(found.toml())
    except OSError as error:
        raise refused(f"cannot write {out}: {error.strerror}", code=2) from error
    said.print(f"next: flowguard check {out}")
