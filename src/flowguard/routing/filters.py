"""Topic filters as text: checks whether they are valid, shared, or match a topic.

`matches` is the naive rule of the standard for one filter and one topic. The index and the
retained store have the same rule for many at once, and are tested against it. Names are not
normalized: they are compared as the characters that arrived ([MQTT-4.7.3-4]).
"""

from typing import Final

FILTER_BYTES_MAX: Final = 65_535
SHARE_PREFIX: Final = "$share/"


def valid_filter(filter: str) -> bool:
    """Return True if `filter` is allowed in SUBSCRIBE; `$share/` gets no special treatment.

    The codec checks for well-formed UTF-8.
    """
    if not filter or "\0" in filter:  # [MQTT-4.7.3-1], [MQTT-4.7.3-2]
        return False
    if not _fits(filter):  # [MQTT-4.7.3-3]
        return False
    if not has_wildcard(filter):
        return True
    levels = filter.split("/")
    if any("#" in level for level in levels[:-1]):  # [MQTT-4.7.1-1], [v3 MQTT-4.7.1-2]
        return False
    return not any(
        len(level) > 1 and has_wildcard(level) for level in levels
    )  # a wildcard fills its level: [MQTT-4.7.1-1], [MQTT-4.7.1-2], [v3 MQTT-4.7.1-3]


def has_wildcard(filter: str) -> bool:
    return "+" in filter or "#" in filter


def levels_count(filter: str) -> int:
    """Return the number of levels of a filter or topic; `$share/{name}/` counts as any text."""
    return filter.count("/") + 1


def parse_shared(filter: str) -> tuple[str, str] | None:
    """Return (name, rest) of `$share/{name}/{rest}`, or None for a filter that is not shared.

    Raises `ValueError` if it starts as a shared filter and is none.
    """
    if not filter.startswith(SHARE_PREFIX):
        return None
    name, separator, rest = filter[len(SHARE_PREFIX) :].partition("/")
    if not name:  # [MQTT-4.8.2-1]
        raise ValueError("a shared subscription needs a share name")
    if has_wildcard(name):  # [MQTT-4.8.2-2]
        raise ValueError("a share name must not contain a wildcard")
    if not separator or not rest:  # [MQTT-4.8.2-2]
        raise ValueError("a share name must be followed by '/' and a topic filter")
    if not valid_filter(filter) or not valid_filter(rest):
        raise ValueError("the topic filter behind the share name is not valid")
    return name, rest


def matches(filter: str, topic: str) -> bool:
    """Return True if a valid filter, not shared, matches a topic name; O(length)."""
    if topic.startswith("$") and filter[0] in "+#":  # [MQTT-4.7.2-1]
        return False
    wanted = filter.split("/")
    levels = topic.split("/")
    if wanted[-1] == "#":  # matches its parent too, so the level before it may be the last
        wanted.pop()
        if len(levels) < len(wanted):
            return False
    elif len(levels) != len(wanted):
        return False
    return all(want in ("+", level) for want, level in zip(wanted, levels, strict=False))


def _fits(filter: str) -> bool:
    if filter.isascii():
        return len(filter) <= FILTER_BYTES_MAX
    return len(filter.encode("utf-8", "surrogatepass")) <= FILTER_BYTES_MAX
