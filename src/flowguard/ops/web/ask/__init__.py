"""Answers to operators: lists, changes and tests of rules.

- `lists`      answers of the lists, in pages
- `acl`        tells which rule lets a client publish or subscribe
- `changes`    ends connections and sessions, deletes retained messages
- `collected`  what other answers need, collected in several steps
"""
