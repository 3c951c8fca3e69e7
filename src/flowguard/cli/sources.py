"""Sources: the files and options with the settings of `serve`."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import structlog

from flowguard.cli.settings import Given, Limits, LoadedSettings, load, read_limits, with_limits
from flowguard.config import FlowSettings, Settings
from flowguard.flow.policies import MINDED

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Sources:
    given: Given
    config: Path | None
    limits: Path | None
    shadow: Path | None
    """File of limits that only watch."""

    def load(self) -> LoadedSettings:
        """Load the settings, also from the environment. Raises ConfigError."""
        return load(self.config, os.environ, read_limits(self.limits), self.given)

    def log_limits(self, loaded: LoadedSettings, shadow: Limits | None) -> None:
        """Log the limits that come from files."""
        if self.limits is not None:
            log.info("limits", file=str(self.limits), in_force=_in_force(self.limits, loaded))
        if shadow is not None:
            log.info("shadow", file=str(shadow.path), **_judged(shadow))

    def as_json(self) -> dict[str, Any]:
        return {
            "given": {key: [option, _plain(value)] for key, (option, value) in self.given.items()},
            **{name: _plain(getattr(self, name)) for name in ("config", "limits", "shadow")},
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        files = [values[name] for name in ("config", "limits", "shadow")]
        given = {key: (option, value) for key, (option, value) in values["given"].items()}
        return cls(given, *[None if name is None else Path(name) for name in files])


def shadow_of(limits: Limits | None, settings: Settings) -> FlowSettings | None:
    """Return the limits that only watch, or None if there are none. Raises ConfigError."""
    return None if limits is None else with_limits(settings, limits)


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else value


def _in_force(limits: Path, loaded: LoadedSettings) -> dict[str, object]:
    """Return the values of a file of limits, except those that a variable or option overrides."""
    values = loaded.settings.flow.model_dump()
    keys = [key for key, origin in loaded.origins.items() if origin == str(limits)]
    return {key: values[key] for key in (key.partition(".")[2] for key in keys)}


def _judged(limits: Limits) -> dict[str, object]:
    """Return the values that a shadow uses, and the keys that no policy uses."""
    judged = {key: value for key, value in limits.values.items() if key in MINDED}
    return {"judged": judged, "not_judged": sorted(limits.values.keys() - judged.keys())}
