"""Section: frozen settings with checked values, as in flowguard, but without pydantic."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, ClassVar, Final, Literal, Self, get_args, get_origin, get_type_hints

BOUNDS: Final[dict[str, tuple[str, Callable[[float, float], bool]]]] = {
    "ge": ("at least", lambda value, bound: value >= bound),
    "gt": ("more than", lambda value, bound: value > bound),
    "le": ("at most", lambda value, bound: value <= bound),
    "lt": ("less than", lambda value, bound: value < bound),
}


@dataclass(frozen=True, slots=True)
class _Default:
    value: Any
    bounds: dict[str, float]


def Field(default: Any, **bounds: float) -> Any:  # the name in the source
    """Return the default of a setting, with bounds by their names in `BOUNDS`."""
    return _Default(default, bounds)


class Section:
    """Settings are keyword arguments. A wrong name or value raises ValueError."""

    _defaults: ClassVar[Mapping[str, _Default]]
    _types: ClassVar[Mapping[str, Any]]

    def __init_subclass__(cls) -> None:
        types = get_type_hints(cls)
        given = {name: vars(cls)[name] for name in types if not name.startswith("_")}
        cls._types, cls._defaults = (
            types,
            {
                name: default if isinstance(default, _Default) else _Default(default, {})
                for name, default in given.items()
            },
        )
        for name in given:
            delattr(cls, name)

    def __init__(self, **values: Any) -> None:
        if unknown := values.keys() - self._defaults.keys():
            known = ", ".join(self._defaults)
            raise ValueError(f"{', '.join(sorted(unknown))}: unknown setting; known are {known}")
        for name, default in self._defaults.items():
            value = values.get(name, default.value)
            _check(name, value, self._types[name], default.bounds)
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name}: settings are frozen, use model_copy")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash(tuple(vars(self).items()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in vars(self).items())})"

    def model_copy(self, *, update: dict[str, Any]) -> Self:
        """Return the same settings, except for these."""
        return type(self)(**{**vars(self), **update})


def _check(name: str, value: Any, form: Any, bounds: dict[str, float]) -> None:
    """Raise ValueError if a value has not this type, or is outside of the bounds."""
    kinds = get_args(form) if get_origin(form) is not Literal else (form,)
    for kind in kinds or (form,):
        if get_origin(kind) is Literal:
            if value in get_args(kind):
                return
        elif kind is float:
            if type(value) in (int, float) and isfinite(value):
                break
        elif type(value) is kind:
            break
    else:
        raise ValueError(f"{name}: {value!r} is no value of this setting, {_names(form)}")
    for key, bound in bounds.items():
        words, holds = BOUNDS[key]
        if value is not None and not holds(value, bound):
            raise ValueError(f"{name}: {value!r} is not {words} {bound}")


def _names(form: Any) -> str:
    if get_origin(form) is Literal:
        return f"one of {', '.join(map(str, get_args(form)))}"
    kinds = get_args(form) or (form,)
    return " or ".join(kind.__name__ if isinstance(kind, type) else _names(kind) for kind in kinds)
