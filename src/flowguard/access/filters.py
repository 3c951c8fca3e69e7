"""Topic filters level by level: matching topics, filters that contain others or overlap.

A filter is the list of its levels, `a/+/#` is `["a", "+", "#"]`. A filter that begins with a
wildcard does not match topics that begin with `$` ([MQTT-4.7.2-1]).
"""


def is_filter(levels: list[str]) -> bool:
    """Return True if these are the levels of a valid filter ([MQTT 5.0, 4.7.1])."""
    if levels == [""] or "#" in levels[:-1]:
        return False
    for level in levels:
        if "\0" in level or (len(level) > 1 and ("+" in level or "#" in level)):
            return False
    return True


def _is_apart(first: str, second: str) -> bool:
    """Return True if one first level is a wildcard and the other begins with `$`."""
    if first in ("+", "#"):
        return second.startswith("$")
    return first.startswith("$") and second in ("+", "#")


def matches(filter: list[str], topic: list[str]) -> bool:
    """Return True if the levels of a topic match; O(levels)."""
    if _is_apart(filter[0], topic[0]):
        return False
    count = len(topic)
    for index, want in enumerate(filter):
        if want == "#":
            return True  # `#` also matches its parent.
        if index == count or (want != "+" and want != topic[index]):
            return False
    return len(filter) == count


def holds(filter: list[str], other: list[str]) -> bool:
    """Return True if each topic that matches `other` also matches `filter`; O(levels)."""
    if _is_apart(filter[0], other[0]) and other[0] not in ("+", "#"):
        return False
    count = len(other)
    for index, want in enumerate(filter):
        if want == "#":
            return True
        if index == count or other[index] == "#":
            return False
        if want != "+" and want != other[index]:
            return False
    return len(filter) == count


def meet(first: list[str], second: list[str]) -> bool:
    """Return True if some topic matches both; O(levels)."""
    if _is_apart(first[0], second[0]):
        return False
    index = 0
    while True:
        first_ends, second_ends = index == len(first), index == len(second)
        if first_ends and second_ends:
            return True
        if not first_ends and first[index] == "#":
            return True
        if not second_ends and second[index] == "#":
            return True
        if first_ends or second_ends:
            return False
        mine, yours = first[index], second[index]
        if mine != yours and mine != "+" and yours != "+":
            return False
        index += 1
