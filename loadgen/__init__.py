"""Load for any MQTT broker: `flowguard storm`, its kit of experiments, and the demo.

- `storm/`    crowds of clients, and messages between them
- `kit/`      experiments that show how a broker behaves in a crowd
- `demo/`     a flash crowd against a small broker, live in the terminal
- `command/`  the command `flowguard storm`

It uses the codec of flowguard and the views of its command line; no broker imports it.
"""
