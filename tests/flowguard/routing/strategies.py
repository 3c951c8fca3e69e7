"""Topics and filters from few words, so that they meet often."""

from hypothesis import strategies as st

WORDS = ["a", "b", "", "$a", "é"]

topic_levels = st.lists(st.sampled_from(WORDS), min_size=1, max_size=5)
topics = topic_levels.map("/".join).filter(bool)


def _filter(levels: list[str], last: list[str]) -> str:
    return "/".join(levels + last)


filters = st.builds(
    _filter,
    st.lists(st.sampled_from([*WORDS, "+", "+"]), max_size=4),
    st.sampled_from([["#"], ["+"], ["a"], ["b"], ["é"]]),
)
