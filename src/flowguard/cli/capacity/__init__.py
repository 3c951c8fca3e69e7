"""`flowguard capacity`: the number of clients that this machine can serve.

- `command`   the command, its table and its sentence
- `estimate`  the limit of each resource, and the one that ends first
- `measure`   rates of this machine: TLS handshakes, CONNECTs, passwords
"""
