"""The server's side of one MQTT connection, sans-IO, split by direction.

The base of a connection; each file imports only those above it in this list:

- `states`         states of a connection, and reasons why a client gets no message
- `chores`         work that is done piece by piece
- `handshake`      rules of CONNECT and CONNACK
- `conversation`   the interface of a connection for the files below
- `lives`          ends of clients' connections, counted and remembered
- `counters`       counts of one node since its start
- `host`           the interface of the node: commits, routing, begin and end of connections
- `inflight`       messages sent and unacknowledged: of one client, and bytes of the whole node
- `fetch`          a request to the store for a page of a backlog
- `backlog`        messages that wait, in memory and on disk
- `node_state`     state that the connections of a node share: limits, counts, budgets, ready lists
- `state_bytes`    the account of a client's memory besides messages, in bytes
- `filters`        the subscriptions of a session, and retained messages that they are owed

Owners of messages:

- `owner`          a message sink: a session, or the queue of a shared subscription; its admission
- `membership`     messages that a client has from the queues of shared subscriptions
- `retained_sends` retained messages for new subscriptions, a slice at a time
- `receiver`       a session as its connection sees it: the parts that a session has

The connection:

- `aliases`        topic aliases, the broker's and the client's
- `frames`         encoded deliveries, shared by all clients that get them
- `resend`         messages sent on a former connection and not acknowledged
- `outbox`         bytes to the client, until its socket takes them
- `dispatch`       messages into that outbox, encoded, and in flight
- `outbound`       messages to the client: when they are sent, resent, or have to wait
- `session`        state that outlives a connection
- `acknowledging`  effects of the client's PUBACK, PUBREC and PUBCOMP
- `inbound_exchanges` PUBLISH of the client at QoS 1 and 2: identifiers and answers
- `inbound`        from the client: PUBLISH, SUBSCRIBE, the window
- `input`          bytes of a peer that are not handled yet, and the limit of reading ahead
- `connection`     from the first byte to the last: gives bytes to the decoder, owns the life cycle

Replies go into the outbox. The node is reached through an interface of `host`, or through
`node_state`. No file of this package reads a clock or a socket: `now_s` is an argument, bytes go in
and bytes come out.
"""
