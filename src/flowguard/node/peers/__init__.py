"""Other nodes of a cluster: messages to and from them, and what of them a store keeps.

- `peers`        the other nodes, as routing, subscribing and the loop know them
- `links`        the host of the links: it routes and commits what arrives on them
- `peer`         one peer: what is owed to it, and its mark
- `peer_routes`  the peers that get messages of a topic
- `messages`     messages between nodes as bytes
- `inbox`        messages of one peer, in their order
- `relay`        a message on its way to peers
- `retained`     retained messages: the owner of a topic orders them, every node has all
- `ordered_answers`  publishers whose messages wait for the commits of peers
"""
