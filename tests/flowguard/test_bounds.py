"""All memory of a node is within the limit, for any settings, or it does not start."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis.strategies import DrawFn, composite, floats, integers, sampled_from

from flowguard.bounds import (
    IN_PROCESS,
    LONG,
    OF_A_CLIENT,
    PROCESS_BYTES,
    RECORDING,
    WORK,
    Bounds,
    Share,
)
from flowguard.config import KIB, MIB, NO_LESS_THAN, Settings
from flowguard.errors import ConfigError

GIB = 1024 * MIB
ALL = (*LONG, *WORK)


def value(settings: Settings, key: str) -> int:
    section, _, name = key.partition(".")
    found: int = getattr(getattr(settings, section), name)
    return found


def bytes_of(shares: tuple[Share, ...], settings: Settings) -> int:
    """Return the bytes that these may take together, by the settings in force."""
    return sum(share.unit_bytes * value(settings, share.key) for share in shares)


@composite
def chosen(draw: DrawFn) -> Settings:
    """Some of the bounds, set to anything that a person might type."""
    tables: dict[str, dict[str, Any]] = {"flow": {"memory_objective": draw(floats(0.3, 0.95))}}
    for share in ALL:
        if draw(integers(0, 4)) == 0:
            section, _, name = share.key.partition(".")
            largest = 4 * GIB // share.unit_bytes
            tables.setdefault(section, {})[name] = draw(integers(share.least, largest))
    for key in OF_A_CLIENT:
        if draw(integers(0, 4)) == 0:
            tables.setdefault("session", {})[key.partition(".")[2]] = draw(integers(MIB, 64 * MIB))
    tables["store"] = tables.get("store", {}) | {"kind": draw(sampled_from(["rocks", "memory"]))}
    try:
        return Settings.model_validate(tables)
    except ValueError:
        return Settings.model_validate({"flow": tables["flow"], "store": tables["store"]})


@given(settings=chosen(), memory_bytes=integers(64 * MIB, 64 * GIB))
def test_all_bounds_together_are_within_the_limit_or_it_is_said_what_does_not_fit(
    settings: Settings, memory_bytes: int
) -> None:
    try:
        bounds = Bounds.of(settings, memory_bytes)
    except ConfigError as error:
        text = str(error)
        assert text.startswith("flow.memory_max_bytes: ")
        # The requested limit is enough, and a byte less would not be.
        needed = int(text.rpartition("raise it to ")[2].partition(",")[0])
        assert memory_bytes < needed
        Bounds.of(settings, needed)
        with pytest.raises(ConfigError):
            Bounds.of(settings, needed - 1)
        return
    in_force = bounds.settings
    stored = settings.store.kind == "rocks"
    long = tuple(each for each in LONG if stored or not each.key.startswith("store."))
    total_bytes = PROCESS_BYTES + bytes_of(long, in_force) + bytes_of(WORK, in_force)
    assert total_bytes <= memory_bytes == in_force.flow.memory_max_bytes
    for share in (*long, *WORK):
        section, _, name = share.key.partition(".")
        if name in getattr(settings, section).model_fields_set:
            assert value(in_force, share.key) == value(settings, share.key), "somebody set it"
        else:
            assert value(in_force, share.key) >= share.least
    for lesser, greater, why in NO_LESS_THAN:
        assert value(in_force, lesser) <= value(in_force, greater), (lesser, greater, why)


@given(memory_bytes=integers(128 * MIB, 64 * GIB), objective=floats(0.6, 0.9))
def test_what_is_held_for_long_presses_nobody(memory_bytes: int, objective: float) -> None:
    """All bounds that peers can keep full are within what memory may be for long."""
    settings = Settings.model_validate({"flow": {"memory_objective": objective}})
    bounds = Bounds.of(settings, memory_bytes)
    long_bytes = PROCESS_BYTES + bytes_of(LONG, bounds.settings)
    assert long_bytes == bounds.long_bytes
    least_bytes = PROCESS_BYTES + sum(share.unit_bytes * share.least for share in LONG)
    assert long_bytes <= max(objective * memory_bytes, least_bytes)


@given(memory_bytes=integers(128 * MIB, 64 * GIB), objective=floats(0.3, 0.95))
def test_packets_in_process_fit_twice_between_rest_and_the_objective_of_memory(
    memory_bytes: int, objective: float
) -> None:
    """The journal holds them a second time."""
    settings = Settings.model_validate({"flow": {"memory_objective": objective}})
    in_force = Bounds.of(settings, memory_bytes).settings
    free_bytes = objective * memory_bytes - PROCESS_BYTES
    assert 2 * value(in_force, IN_PROCESS) <= max(free_bytes, 2 * MIB)


@given(settings=chosen(), memory_bytes=integers(256 * MIB, 64 * GIB))
def test_settings_in_force_are_their_own_bounds(settings: Settings, memory_bytes: int) -> None:
    """A node that starts with them, as after a restart, gets the same."""
    try:
        bounds = Bounds.of(settings, memory_bytes)
    except ConfigError:
        return
    assert Bounds.of(bounds.settings, memory_bytes) == bounds


@pytest.mark.parametrize("share", ALL, ids=lambda share: share.key)
def test_more_memory_never_means_less_of_anything(share: Share) -> None:
    sizes = [MIB << power for power in range(7, 17)]
    values = [value(Bounds.of(Settings(), size).settings, share.key) for size in sizes]
    assert values == sorted(values)
    assert share.most is None or values[-1] == share.most


def test_a_node_that_records_itself_has_memory_for_it() -> None:
    settings = Settings.model_validate({"telemetry": {"record_dir": "runs"}})
    with_recording = Bounds.of(settings, 256 * MIB)
    assert with_recording.settings.telemetry.buffer_bytes_max < 32 * MIB
    assert with_recording.queue_bytes < Bounds.of(Settings(), 256 * MIB).queue_bytes
    assert RECORDING.most == Settings().telemetry.buffer_bytes_max


def test_groups_of_several_brokers_have_memory_of_their_own() -> None:
    kafka = {"groups_prefix": "site", "servers": "k:9092"}
    values = {"store": {"application_store": "kafka"}, "kafka": kafka}
    with_groups = Bounds.of(Settings.model_validate(values), 256 * MIB)
    limit = with_groups.settings.kafka.groups_bytes_max
    assert limit is not None
    assert MIB <= limit < 64 * MIB
    without = Bounds.of(Settings(), 256 * MIB)
    assert with_groups.queue_bytes < without.queue_bytes
    assert without.settings.kafka.groups_bytes_max is None
    kept = Bounds.of(
        Settings.model_validate(values | {"kafka": kafka | {"groups_bytes_max": 5 * MIB}}),
        256 * MIB,
    )
    assert kept.settings.kafka.groups_bytes_max == 5 * MIB


def test_one_client_never_has_all_of_what_all_have() -> None:
    for memory_bytes in (100 * MIB, 150 * MIB, GIB, 64 * GIB):
        in_force = Bounds.of(Settings(), memory_bytes).settings
        assert (
            value(in_force, "session.state_bytes_max")
            <= value(in_force, "node.state_bytes_max") // 8
            or memory_bytes < 150 * MIB
        )
        assert value(in_force, "session.outbox_bytes_max") >= 16 * KIB


def test_what_does_not_fit_is_named_with_its_size() -> None:
    settings = Settings.model_validate({"node": {"queue_bytes_max": 200 * MIB}})
    with pytest.raises(ConfigError, match=r"node\.queue_bytes_max 209,715,200.*raise it to \d+"):
        Bounds.of(settings, 200 * MIB)
