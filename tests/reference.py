"""Write the pages of docs/reference from the code: `python -m tests.reference`.

`tests/test_reference.py` compares them with what this program writes.
"""

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Final, get_args

from typer.main import get_command

from broker_adapter.proxy.watch.catalogue import CATALOGUE as OF_A_PROXY
from flowguard.app.workers.cluster_http import OF_A_CLUSTER
from flowguard.cli import app
from flowguard.cli.settings import settings_toml
from flowguard.flow.verdict import Cut, Pause, Reason
from flowguard.node.connect.accept_state import CheckOutcome, LayerFault, Rest
from flowguard.ops.catalogue import CATALOGUE
from flowguard.ops.common.measurement import Kind, Measurement
from flowguard.session.states import Undelivered
from flowguard.telemetry import schema
from simulations.scenario_files.reference import keys_toml
from tests.flowguard.session.transitions import CONNECTION, RECEIVED, SENT, Event, Step

ROOT: Final = Path(__file__).resolve().parents[1]
FOLDER: Final = ROOT / "docs" / "reference"
ERROR: Final = ("error", "`exc_info`")
REJECTED_PEER: Final = ("warning", "`address`, `client_id`, `user_name`, `reason`, `why`")
REJECTED_PACKET: Final = ("warning", "`client_id`, `user_name`, `topic`, `reason`")
BOUNDED_EVENTS: Final = {
    "address limited after wrong passwords": ("warning", "`address`, `effect`, `ends`"),
    "audit": ("warning", "`action`, `by`, `status`"),
    "authentication failed": REJECTED_PEER,
    "connection failed": ERROR,
    "error in a callback": ERROR,
    "http request failed": ERROR,
    "peer rejected": REJECTED_PEER,
    "publish rejected": REJECTED_PACKET,
    "subscription rejected": REJECTED_PACKET,
    "tick failed": ERROR,
    "transport failed": ("warning", "`address`, `reason`, `why`"),
    "connected": (
        "debug",
        "`client_id`, `user_name`, `address`, `listener`, `version`, `clean`, `keep_alive_s`, "
        "`session_present`",
    ),
    "disconnected": ("debug", "`client_id`, `address`, `reason`, `by`, `connected_s`, `why`"),
    "subscribed": ("debug", "`client_id`, `user_name`, `topic`, `qos`"),
}
"""Level and fields of the events of each `BoundedLog`."""
UNITS: Final = ("seconds", "bytes", "packets", "ratio")
LEVELS: Final = ("info", "warning", "error")
Rows = Iterable[Iterable[str]]


def page(title: str, *parts: str) -> str:
    note = "`python -m tests.reference` writes this page; do not edit it."
    return "\n\n".join([f"# {title}", note, *(part.strip("\n") for part in parts)]) + "\n"


def table(head: Iterable[str], rows: Rows) -> str:
    names = list(head)
    lines = [names, ["---"] * len(names), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def settings() -> str:
    return page(
        "Settings",
        "`flowguard settings` prints this file. [Configuration](../operate/configuration.md) "
        "explains how to set a key.",
        f"```toml\n{settings_toml()}```",
    )


def scenarios() -> str:
    return page(
        "Keys of a scenario file",
        "`flowguard simulate --keys` prints this file. "
        "[Simulation](../operate/simulation.md) has examples.",
        f"```toml\n{keys_toml()}```",
    )


def metrics() -> str:
    names = {each.metric for each in CATALOGUE}
    own = [each for each in OF_A_PROXY if each.metric not in names]
    common = ", ".join(sorted(names & {each.metric for each in OF_A_PROXY} - {""}))
    return page(
        "Metrics",
        "`GET /metrics` has these for Prometheus. Each name ends in its unit. Labels have few, "
        "known values; no series is named after a client. Values are read at the scrape. Metrics "
        "of a shadow or a recording exist only with one.",
        metrics_table(CATALOGUE),
        "## Of a node of a cluster\n\nA node has the metrics above for each of its shards, with "
        "the label `worker`, and these:",
        metrics_table(OF_A_CLUSTER),
        "## Of a proxy\n\nOnly `flowguard proxy` has these:",
        metrics_table(own),
        f"The proxy also has these metrics of the broker: {common}.",
    )


def metrics_table(catalogue: Sequence[Measurement[Any]]) -> str:
    rows = []
    for each in catalogue:
        if each.metric:
            name = f"flowguard_{each.metric}{'_total' if each.kind is Kind.COUNTER else ''}"
            by = f" by {', '.join(sorted(each.labels))}" if each.labels else ""
            unit = each.metric.rpartition("_")[2]
            unit = unit if unit in UNITS else "count"
            rows.append((f"`{name}`{by}", each.kind.value, unit, each.help))
    return table(("Metric", "Type", "Unit", "Meaning"), rows)


def members(kind: type[Enum]) -> str:
    """Return a table of the members of an enum, with the text below each."""
    (found,) = (
        node
        for node in ast.parse(inspect.getsource(inspect.getmodule(kind) or kind)).body
        if isinstance(node, ast.ClassDef) and node.name == kind.__name__
    )
    said = [node.value.value for node in found.body if isinstance(node, ast.Expr)][1:]  # type: ignore[attr-defined]
    texts = [inspect.cleandoc(str(text)).replace("\n", " ") for text in said]
    rows = zip(kind, texts, strict=True)
    return table(("Reason", "Meaning"), ((f"`{member.value}`", text) for member, text in rows))


REASONS: Final[Mapping[type[Enum], str]] = {
    Reason: "## Rejected or dropped\n\n"
    "The label `reason` of `flowguard_connects_refused_total` and "
    "`flowguard_messages_dropped_total`. The log and `flowguard explain` name them too.",
    Pause: "## Why a client is paused\n\n"
    "A paused client's packets wait, or its socket is not read. The broker still processes "
    "acknowledgements and PINGREQ that it reads. `flowguard explain` shows the cause instead of "
    "`closed`: `journal` (the store is behind), `applications` (Kafka is unavailable) or "
    "`draining`.",
    Undelivered: "## Why a client gets nothing\n\n"
    "The first failed check before a message is sent. The message then waits in the client's "
    "queue; a QoS 0 message is dropped and counted.",
    Rest: "## Why a listener accepts no connections\n\n"
    "Further connections wait in the listen backlog.",
    LayerFault: "## Failures before MQTT\n\n"
    "The label `reason` of `flowguard_layer_faults_total`: failures of TLS, WebSocket or the PROXY "
    "protocol.",
    CheckOutcome: "## Outcomes of authentication\n\n"
    "The label `outcome` of `flowguard_identity_checks_total`.",
    Cut: "## Cuts of CONNECTs in process\n\nReasons to admit fewer CONNECTs at once.",
}


def reasons() -> str:
    parts = [part for kind, text in REASONS.items() for part in (text, members(kind))]
    return page("Reasons", *parts)


def exchange(steps: Mapping[tuple[Enum, Event], Step]) -> str:
    return table(
        ("State", "Event", "Answer", "Next state"),
        (
            (state.value, event.value, step.answer.value, step.state.value)
            for (state, event), step in steps.items()
        ),
    )


def session_states() -> str:
    rows = ((state.value, event, after.value) for (state, event), after in CONNECTION.items())
    return page(
        "States of a session",
        "Tests drive the code by these tables. [A session](../explain/session.md) explains them.",
        "## The connection",
        table(("State", "Event", "Next state"), rows),
        "## A message to the client\n\nQoS 1 and 2, by packet identifier. The events are the "
        "client's acknowledgements.",
        exchange(SENT),
        "## A message from the client\n\nQoS 2, by packet identifier.",
        exchange(RECEIVED),
    )


def texts_of(node: ast.expr, constants: Mapping[str, ast.expr]) -> Iterator[str]:
    """Yield the values that the first argument of a log call can have."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.IfExp():
            yield from texts_of(node.body, constants)
            yield from texts_of(node.orelse, constants)
        case ast.Subscript(value=ast.Name(id=name)) if name in constants:
            for value in getattr(constants[name], "values", ()):
                yield from texts_of(value, constants)
        case ast.JoinedStr():
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "..." for part in node.values
            )
        case _:
            raise ValueError(ast.unparse(node))


def events_in(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield event, level and fields of each log call of a file."""
    tree = ast.parse(path.read_text())
    constants = {
        node.targets[0].id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="log"), attr=level)):
                if level in LEVELS:
                    names = [word.arg or "..." for word in node.keywords]
                    fields = ", ".join(f"`{name}`" for name in dict.fromkeys(names))
                    for text in texts_of(node.args[0], constants):
                        yield text, level, fields.replace("`...`", "...")
            case ast.Call(func=ast.Name(id="BoundedLog"), args=[ast.Constant(value=str(text)), *_]):
                level, fields = BOUNDED_EVENTS[text]
                yield text, level, fields
                yield f"{text}, not shown", level, "count by error or reason"


PARQUET_PREFACE: Final = f"""\
# The tables of a run

Version {schema.VERSION}. Made from `src/flowguard/telemetry/schema.py`; do not edit.

A run is a directory of Parquet files, `TABLE-NUMBER.parquet` (`samples-00000.parquet`, ...), the
same from a simulation and from a broker that records. A file that is not complete is called
`.TABLE-NUMBER.parquet.part`. Several runs are several directories in one. A run without a row in
`end` was not finished. A broker may record several runs: its counters continue from run to run,
and times and file numbers begin again.

Every file has its table and version in its own metadata (`flowguard.table`, `flowguard.schema`).
Every page has a checksum, which most readers compare only on request (pyarrow:
`page_checksum_verification=True`; Spark: `parquet.page.verify-checksum.enabled`). A file without
checksums is valid, too; damage in it may be read as other numbers.
Names end with their units; `_ratio` is a quotient without one. Times of a simulation are virtual,
and the same seed gives the same content.
"""


def parquet_schema() -> str:
    lines = [PARQUET_PREFACE]
    for each in schema.TABLES.values():
        lines += [f"## {each.name}", "", " ".join((each.row.__doc__ or "").split()), ""]
        lines += ["| column | type | null | meaning |", "|---|---|---|---|"]
        for column in each.columns:
            null = "yes" if column.nullable else ""
            lines.append(f"| `{column.name}` | {column.type} | {null} | {column.meaning} |")
        lines += ["", f"The key is {', '.join(f'`{name}`' for name in each.key)}.", ""]
    return "\n".join(lines)


LOGGING = ("src", "broker_adapter", "loadgen", "store_tools")
"""Folders with code that logs."""


def log_events() -> str:
    paths = [path for folder in LOGGING for path in (ROOT / folder).rglob("*.py")]
    rows = sorted({event for path in paths for event in events_in(path)})
    return page(
        "Log events",
        "[Operations](../operate/operations.md#the-log) describes format, level and limits of the "
        "log. `...` stands for further fields, or for a part of the text that varies.",
        table(("Event", "Level", "Fields"), rows),
    )


def cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").strip()


def value_of(param: Any) -> str:
    """Return the placeholder of an option's value, or "" of a flag."""
    if getattr(param, "is_flag", False):
        return ""
    annotation = param.type_descriptor.annotation
    kinds = [kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type)]
    for kind in kinds:
        if issubclass(kind, Enum):
            return " " + "\\|".join(str(choice.value) for choice in kind)
    return f" {param.metavar or param.name.upper()}"


def default_of(param: Any) -> str:
    value = getattr(param.default, "value", param.default)
    if param.required:
        return "required"
    is_shown = isinstance(value, str | int | float | Path) and value is not False and value != ""
    return f"`{value}`" if is_shown and value is not True else ""


def command(path: str, found: Any) -> Iterator[str]:
    """Yield the sections of a command and of the commands below it."""
    arguments = [param for param in found.params if param.param_type_name == "argument"]
    words = [each.metavar if each.required else f"[{each.metavar}]" for each in arguments]
    usage = " ".join([path, *words])
    yield f"## {path}\n\n`{cell(usage)}`\n\n{found.help or ''}"
    rows = []
    for param in found.params:
        if getattr(param, "hidden", False) or param.name == "help":
            continue
        is_option = param.param_type_name == "option"
        words = [*param.opts, *param.secondary_opts] if is_option else [param.metavar]
        name = f"`{', '.join(words)}`{value_of(param) if is_option else ''}"
        rows.append((name, default_of(param), cell(param.help or "")))
    if rows:
        yield table(("Option", "Default", "Meaning"), rows)
    for name, inner in getattr(found, "commands", {}).items():
        yield from command(f"{path} {name}", inner)


def command_line() -> str:
    group: Any = get_command(app)
    parts = []
    for name in group.list_commands(None):
        parts += command(f"flowguard {name}", group.get_command(None, name))
    return page("Command line", "`flowguard COMMAND --help` prints the same.", *parts)


PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "settings": settings,
    "command-line": command_line,
    "metrics": metrics,
    "log-events": log_events,
    "reasons": reasons,
    "session-states": session_states,
    "scenario-keys": scenarios,
    "parquet-schema": parquet_schema,
}


def main() -> None:
    for name, text in PAGES.items():
        (FOLDER / f"{name}.md").write_text(text())


if __name__ == "__main__":
    main()
