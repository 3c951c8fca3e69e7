"""Shared subscriptions that several brokers have in common, as consumer groups of Kafka.

- `groups`       all groups, for the store
- `roster`       the shared subscriptions that exist, and their topics
- `tail`         follows the topic in which brokers announce their groups
- `claims`       the groups that this broker announces
- `consumer`     the member of this broker in one group
- `window`       messages that a consumer has read
- `capacity`     bounds on messages and bytes of all groups
- `record`       one message in the topic of a group
- `renewal`      commits that are repeated before servers delete them
- `ended_tasks`  reports of tasks that ended because of a defect
"""
