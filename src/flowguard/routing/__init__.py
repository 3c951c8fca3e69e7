"""Routing: from a topic to its subscribers. Sans-IO, no clock.

- `filters`: rules for one filter: valid, shared, matching
- `index`: the subscriptions of a node, found by topic
- `shared`: shared subscriptions, one member per message
- `changed_filters`: the topics that a change of subscriptions concerns
- `table`: plain and shared subscriptions of a node behind one `match`
- `retained`: the last message of each topic, bounded
- `few`: the mapping that makes ten thousand lone subscribers cheap

Subscribers, and the options of a subscription (QoS, No Local, identifiers), are opaque values. The
caller checks rights, and limits on levels and subscriptions.
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
