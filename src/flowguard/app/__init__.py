"""The one place that assembles a broker: store, listeners, identity, node, loop and services.

- `broker`      `build_broker`: the parts that the settings name, and `BrokerParts.run`
- `http_front`  the HTTP port of a broker; `waiting_http` answers while it opens its store
- `stores`      the store that the settings name
- `failures`    why a broker did not start or ended, in words for its operator
- `reloadable_files`  certificates, users, keys and rules, read again while the broker runs
- `giving`      how a node of a cluster gives its shards away
- `embedded`    a broker inside a program on trio; `in_thread`: inside any other program
- `host_logs`   log events of such a broker, through `logging`
- `extras`      how to install the packages that a feature needs
"""
