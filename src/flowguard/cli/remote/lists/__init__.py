"""Commands for what a running broker has: lists in pages, and changes.

- `clients`        lists, disconnects and removes clients
- `subscriptions`  lists filters of clients
- `topics`         lists the clients that get a topic
- `retained`       lists and deletes retained messages
- `pages`          asks for the pages of a list, and prints them; asks for changes
"""
