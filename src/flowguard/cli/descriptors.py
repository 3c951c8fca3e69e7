"""Descriptors: one per connection, as many as the system allows."""

import resource

from flowguard.errors import ConfigError

OWN_DESCRIPTORS = 64
"""Descriptors that a process needs besides its connections."""


def use_all_descriptors() -> int:
    """Raise the soft limit to the hard one; return the limit in force."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def require_descriptors(connections: int) -> None:
    """Raise the limit; raise ConfigError with advice if it is too low."""
    hard = use_all_descriptors()
    if hard < connections + OWN_DESCRIPTORS:
        raise ConfigError(
            f"{connections:,} clients need as many open files; this process may open {hard:,}.\n"
            f"Ask for at most {max(0, hard - OWN_DESCRIPTORS):,} clients, or raise the hard limit "
            "(ulimit -Hn)."
        )
