"""Rules: who may do what, by roles, and the topics that they may publish to and receive.

- `filters`    one filter beside another, level by level
- `rights`     who somebody is, what one client may do, and what was decided of it
- `rules`      roles, and the rights that follow from them
- `rules_toml` rules as a TOML file has them
- `mosquitto`  rules as Mosquitto's ACL files have them
"""
