"""The page of the drill: each step with its commands and what they printed.

Long outputs are shortened by rule: the first and the last lines stay, and long lines are cut.
"""

from collections.abc import Iterable, Iterator

from tests.drill.terminal import Step

FIRST_LINES, LAST_LINES = 16, 3
WIDTH_MAX = 200


def page(steps: Iterable[Step], clients: int) -> str:
    parts = [
        "# The second day",
        "`make drill` writes this page; do not edit it.",
        f"This page shows the work of an operator of {clients:,} clients, with TLS, users and "
        "rules. The program that writes this page runs the commands on a real broker, and checks "
        "each answer. It leaves out lines in the middle of long outputs. Ports are "
        "the default ones; if yours differ, set `FLOWGUARD_URL`.",
    ]
    for step in steps:
        parts += [f"## {step.title}", step.purpose]
        lines = [line for command in step.commands for line in _lines(command.text, command.output)]
        parts.append("\n".join(["```console", *lines, "```"]))
    return "\n\n".join(parts) + "\n"


def _lines(text: str, output: str) -> Iterator[str]:
    first, *more = text.splitlines()
    yield f"$ {first}"
    yield from (f"> {line.strip()}" for line in more)
    lines = [line.rstrip() for line in output.splitlines()]
    lines = [line for line in lines if line]
    left_out = len(lines) - FIRST_LINES - LAST_LINES
    for number, line in enumerate(lines):
        if left_out > 1 and FIRST_LINES <= number < FIRST_LINES + left_out:
            if number == FIRST_LINES:
                yield f"[{left_out} lines]"
            continue
        yield line if len(line) <= WIDTH_MAX else f"{line[: WIDTH_MAX - 1]}…"
