"""All attacks, in the order in which `make attack` runs them."""

from tests.attacks import (
    clocks,
    crowds,
    damage,
    descriptors,
    disk,
    drained,
    edges,
    http,
    memory,
    processor,
    shared,
    wide,
)

ROOMS = (
    crowds,
    processor,
    wide,
    memory,
    shared,
    descriptors,
    disk,
    drained,
    damage,
    http,
    edges,
    clocks,
)
ATTACKS = [attack for room in ROOMS for attack in room.ATTACKS]
