"""Converts errors of the driver and of servers to those of flowguard, by their class names."""

from typing import Final

from flowguard.errors import ConfigError, FormatError, StallError, StoreError

_DENIED: Final = frozenset(
    (
        "TopicAuthorizationFailedError",
        "GroupAuthorizationFailedError",
        "ClusterAuthorizationFailedError",
        "AuthenticationFailedError",
        "SaslAuthenticationFailed",
    )
)
_TOO_FEW: Final = frozenset(("InvalidReplicationFactorError", "InvalidReplicationAssignmentError"))
_TOO_OLD: Final = frozenset(("UnsupportedVersionError", "IncompatibleBrokerVersion"))
_PASSING: Final = frozenset(("CancelledError", "KafkaTimeoutError"))
"""Errors that may pass, besides those that the driver marks as retriable."""
OPERATIONS: Final = "Create, Describe, Write, Read and Delete on topics, Read on groups"
"""Permissions that the user needs if Kafka has access rules."""


class NoTopicError(StoreError):
    """A topic does not exist: it was never created, or it was deleted."""


class RetentionError(StoreError):
    """The record does not exist any more, because retention has deleted it."""


def no_server(servers: str, why: object) -> ConfigError:
    return ConfigError(
        f"no Kafka answers at {servers} ({why}): start it, or name the addresses of others; "
        "a server that requires TLS or a password does not answer without (kafka.tls, kafka.user)"
    )


def failure(error: BaseException, where: str) -> StoreError:
    """Return the error as one of flowguard; `StallError` if a retry may succeed."""
    name = type(error).__name__
    said = str(error) or name
    if name in _DENIED:
        return StoreError(f"Kafka at {where} denies it ({said}): the user needs {OPERATIONS}")
    if name in _TOO_FEW:
        return StallError(
            f"Kafka at {where} has too few nodes for the number of replicas ({said}): "
            "start more of them, or ask for fewer"
        )
    if name in _TOO_OLD:
        return FormatError(f"Kafka at {where} is too old ({said}): 2.1 or newer is needed")
    if name == "UnknownTopicOrPartitionError":
        return NoTopicError(f"Kafka at {where}: the topic is not there ({said})")
    if name == "OffsetOutOfRangeError":
        return RetentionError(f"Kafka at {where}: {said}")
    if name in _PASSING or getattr(error, "retriable", False) or isinstance(error, OSError):
        return StallError(f"Kafka at {where}: {said}")
    return StoreError(f"Kafka at {where}: {said}")
