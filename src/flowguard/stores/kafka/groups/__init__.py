"""Shared subscriptions that several brokers have in common, as consumer groups of Kafka.

- `groups`       all of them, for the store
- `roster`       which shared subscriptions there are, and their topics
- `tail`         follows the topic in which brokers announce their groups
- `claims`       the groups that this broker announces
- `consumer`     the member of this broker in one group
- `window`       messages that a consumer has read and not settled
- `capacity`     bounds on messages and bytes of all groups
- `record`       one message in the topic of a group
- `renewal`      commits that are repeated before servers drop them
- `ended_tasks`  reports of tasks that ended by a defect
"""
