"""Archive: runs of `flowguard simulate --out`, each in a directory of its own."""

import shlex
from hashlib import blake2b
from json import dumps
from pathlib import Path
from typing import Any, Final, final

from flowguard.config import PolicyName
from flowguard.errors import ConfigError
from flowguard.telemetry.recording import Recording
from simulations.results.recorder import RunDescription, WorldRecorder
from simulations.results.run import Summary, Watch, run
from simulations.scenario_files.loading import DIGEST_BYTES, LoadedScenario, change, parameters
from simulations.world import World

FILE_DIGEST: Final = "file_digest"
"""The parameter that distinguishes scenarios of one name by the content of their files."""


@final
class Archive:
    """A directory of runs, as docs/reference/parquet-schema.md describes them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def check(self, plan: LoadedScenario, policy: PolicyName) -> None:
        """Raise ConfigError if the run exists already, or the directory cannot be written."""
        directory = self._folder / run_id(plan, policy)
        if any(directory.glob("*.parquet")):
            raise ConfigError(
                f"--out: {directory} holds this very run already; name another directory"
            )
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--out: cannot make {directory}: {error.strerror}") from error

    def record(
        self, plan: LoadedScenario, policy: PolicyName, watch: Watch, *, even_if_stopped: bool
    ) -> Summary:
        """Simulate, and record it from the first event on; complete unless `watch` has stopped it,
        or `even_if_stopped`."""
        name = run_id(plan, policy)
        recorders: list[WorldRecorder] = []

        def attach(world: World) -> None:
            recording = Recording(self._folder / name, name)
            recorders.append(WorldRecorder(world, recording, _description(plan, policy)))

        summary = run(plan.scenario, policy, watch=watch, attach=attach)
        if even_if_stopped or summary.ended_by != "stopped":
            recorders[0].finish(summary.ended_by)
        return summary


def run_id(plan: LoadedScenario, policy: PolicyName) -> str:
    """The name of a run, made of scenario, policy, seed, and a digest of the changes and of files
    that are none of the library."""
    said = _changes(plan) | _files(plan)
    parts = [plan.name, policy, str(plan.scenario.seed)]
    if said:
        text = dumps(said, sort_keys=True, default=str)
        parts.append(blake2b(text.encode(), digest_size=DIGEST_BYTES).hexdigest())
    return "-".join(parts)


def _changes(plan: LoadedScenario) -> dict[str, Any]:
    return {key: value for key, value in plan.changes.items() if key != "seed"}


def _files(plan: LoadedScenario) -> dict[str, str]:
    return {} if plan.digest is None else {FILE_DIGEST: plan.digest}


def _description(plan: LoadedScenario, policy: PolicyName) -> RunDescription:
    scenario = plan.scenario
    trigger_at_s, trigger_until_s = scenario.trigger_s
    told = _changes(plan) | _files(plan)
    load: Any = (parameters(plan.source) | plan.changes).get("load")
    return RunDescription(
        scenario=plan.name,
        command=command(plan, policy),
        parameters={key: str(value) for key, value in sorted(told.items())},
        trigger_at_s=trigger_at_s,
        trigger_until_s=trigger_until_s,
        load_ratio=None if load is None else float(load),
    )


def command(plan: LoadedScenario, policy: PolicyName) -> str:
    words = ["flowguard", "simulate", plan.source, "--policy", policy]
    words += ["--seed", str(plan.scenario.seed)]
    for key, value in sorted(_changes(plan).items()):
        words += ["--set", f"{key}={written(value)}"]
    return shlex.join(words)


def written(value: Any) -> str:
    """The value in the form that `change` reads: TOML, or a bare word for text; nothing for
    None."""
    if value is None:
        return ""
    if isinstance(value, str) and change(f"key={value}")[1] == value:
        return value
    return _toml(value)


def _toml(value: Any) -> str:
    match value:
        case dict():
            return "{" + ", ".join(f"{dumps(k)} = {_toml(v)}" for k, v in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(_toml, value)) + "]"
    return dumps(value)
