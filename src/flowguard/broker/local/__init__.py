"""Clients in the same process as the broker.

- `local_client`   a client
- `local_packets`  its packets
"""
