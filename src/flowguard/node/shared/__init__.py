"""Shared subscriptions: one queue for all members of a group.

- `shared_queues`  the shared subscriptions of the node that have a queue
- `shared_queue`   one such queue
- `spread_queues`  shared subscriptions that several brokers have together
- `spread_queue`   the part of one broker in such a subscription
- `left_messages`  messages of a shared subscription whose last member has left
"""
