"""Topics and filters that meet each other, and what a plain list says of them."""

from hypothesis import strategies as st

from flowguard.routing.filters import matches

WORDS = st.sampled_from(["a", "b", "c", "", "$s"])
TOPICS = st.lists(WORDS, min_size=1, max_size=4).map("/".join).filter(bool) | st.lists(
    st.sampled_from(["a", "b"]), min_size=7, max_size=10
).map("/".join)


@st.composite
def filters(draw: st.DrawFn) -> str:
    """A filter that is made from a topic."""
    levels = draw(TOPICS).split("/")
    levels = [draw(st.sampled_from([level, level, "+"])) for level in levels]
    if draw(st.booleans()):
        levels[draw(st.integers(0, len(levels) - 1)) :] = ["#"]
    return "/".join(levels) or "+"


def match_any(wanted: tuple[str, ...] | list[str], topic: str) -> bool:
    return any(matches(filter, topic) for filter in wanted)
