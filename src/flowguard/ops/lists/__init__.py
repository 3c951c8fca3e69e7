"""Lists of clients, subscriptions and messages of a node, in pages.

- `pages`          pages of a list, made in steps of the event loop
- `clients`        clients, and their sessions
- `flapping`       clients whose connections end again and again
- `subscriptions`  filters of clients, and the clients that get a topic
- `retained`       retained messages
"""
