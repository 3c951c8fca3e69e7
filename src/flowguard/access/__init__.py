"""Rules: rights of clients by roles, and the topics that they may publish to and receive.

- `filters`    comparison of filters, level by level
- `rights`     the identity of a client, its rights, and cached decisions
- `verdicts`   single decisions, with the rule that decides
- `rules`      roles, and the rights that follow from them
- `rules_toml` rules in a TOML file
- `mosquitto`  rules in Mosquitto's ACL files
"""
