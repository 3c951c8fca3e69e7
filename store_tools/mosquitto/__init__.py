"""The command `flowguard import`: settings from the configuration of Mosquitto.

- `command`   the command
- `conf`      reads a configuration file
- `listener`  options of listeners
- `options`   all other options
"""
