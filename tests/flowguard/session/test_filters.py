from hypothesis import given
from hypothesis import strategies as st

from flowguard.session.filters import Filters
from flowguard.types import SubscriptionOptions

names = st.sampled_from(("", "a", "b/+", "#"))
changes = st.lists(st.tuples(names, st.none() | st.builds(SubscriptionOptions, st.integers(0, 2))))


@given(changes)
def test_filters_are_what_a_dict_would_be(
    changes: list[tuple[str, SubscriptionOptions | None]],
) -> None:
    filters, model = Filters(), dict[str, SubscriptionOptions]()
    for filter, options in changes:
        if options is not None:
            filters.put(filter, options)
            model[filter] = options
        elif filter in model:
            filters.drop(filter)
            del model[filter]
        assert list(filters.items()) == list(model.items())
        assert list(filters) == list(model)
        assert len(filters) == len(model)
        assert bool(filters) == bool(model)
        for each in ("", "a", "b/+", "#", "else"):
            assert filters.get(each) == model.get(each)
            assert (each in filters) == (each in model)
