"""Inputs that reached something new, one a line, in hexadecimal: a file for each target."""

from collections.abc import Iterable
from pathlib import Path

from tests.fuzz.seeds import seeds

FOLDER = Path(__file__).parent / "corpus"
WIDTH_MAX = 256
"""Longer inputs reach nothing more, bytes."""


def read(target: str) -> list[bytes]:
    """Return the inputs kept for `target`."""
    lines = (FOLDER / f"{target}.txt").read_text().split()
    return [bytes.fromhex(line) for line in lines]


def write(target: str, inputs: Iterable[bytes]) -> None:
    """Keep these and nothing else, but for the seeds; the shortest first."""
    new = {each.hex() for each in inputs} - {each.hex() for each in seeds()}
    lines = sorted(new, key=lambda line: (len(line), line))
    (FOLDER / f"{target}.txt").write_text("".join(f"{line}\n" for line in lines))


def unpack(target: str, folder: Path) -> None:
    """Write them as files, with the seeds, into the fuzzer's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, each in enumerate([*seeds(), *read(target)]):
        (folder / f"kept-{number}").write_bytes(each)
