"""The real objects of flowguard in virtual time. Same seed, same bytes.

- `engine`  virtual time: a heap of events
- `draws`   chance by address: the same clients under every policy
"""
