"""Routing: from a topic to those who want it. Sans-IO, no clock.

- `filters`: valid, shared, matching: the rules for one filter
- `index`: who subscribed to what, found by topic
- `shared`: shared subscriptions, one member per message
- `changed_filters`: which topics a change of subscriptions concerns
- `table`: plain and shared subscriptions of a node behind one `match`
- `retained`: the last message of each topic, bounded
- `few`: the mapping that makes ten thousand lone subscribers cheap

Left to others: options of a subscription (qos, no local, identifiers) are opaque values here, and
so are subscribers. Authorization, and limits on levels and subscriptions, are the caller's.
"""

from flowguard.routing.changed_filters import ChangedFilters
from flowguard.routing.filters import (
    has_wildcard,
    levels_count,
    matches,
    parse_shared,
    valid_filter,
)
from flowguard.routing.index import TopicIndex
from flowguard.routing.retained import RetainedMessage, RetainedMessages, RetainOutcome
from flowguard.routing.shared import SharedGroup
from flowguard.routing.table import Routes, SubscriptionTable

__all__ = [
    "ChangedFilters",
    "RetainOutcome",
    "RetainedMessage",
    "RetainedMessages",
    "Routes",
    "SharedGroup",
    "SubscriptionTable",
    "TopicIndex",
    "has_wildcard",
    "levels_count",
    "matches",
    "parse_shared",
    "valid_filter",
]
