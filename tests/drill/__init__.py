"""The day-two drill: `make drill` does an operator's work on real brokers, and writes a page of it.

- `steps`, `store_steps`  what is tried, with the faults; each step checks that it found its fault
- `proxy_steps`           the same at a proxy in front of Mosquitto
- `scene`                 the broker, its certificates, users and rules
- `devices`               the clients, and those that misbehave
- `terminal`              runs commands and keeps what they print
- `page`                  makes docs/operate/day-two.md of it
"""
