"""Answers to operators: lists and changes.

- `lists`      answers of the lists, in pages
- `changes`    ends connections and sessions, deletes retained messages
- `collected`  what other answers need, collected in several steps
"""
