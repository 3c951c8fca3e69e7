"""The server's side of one MQTT conversation, sans-IO, split by direction.

What a conversation stands on, from below; each file knows those above it in this list:

- `states`         where a connection, an exchange or a waiting client stands
- `counters`       counts of one node since its start
- `chores`         work that is done piece by piece
- `handshake`      what CONNECT may say and what CONNACK answers
- `conversation`   a connection as those see it that it stands on
- `host`           what a conversation asks of its node: commits, and who hears of begin and end
- `inflight`       messages sent and unacknowledged: of one client, and bytes of the whole node
- `fetch`          a page of a backlog that the store is asked for
- `backlog`        messages that wait, in memory and on disk
- `node_state`     what the conversations of a node share: limits, counts, budgets, who is ready
- `state_bytes`    the account of what is kept for a client besides messages, in bytes
- `filters`        the subscriptions of a session, and retained messages that they are owed

For whom messages wait:

- `owner`          a message sink: a session, or the queue of a shared subscription; its admission
- `membership`     what a client has of the queues of shared subscriptions
- `retained_sends` retained messages for new subscriptions, a slice at a time
- `receiver`       a session as its connection sees it: the parts that a session has

The conversation:

- `aliases`        topic aliases, ours and the client's
- `frames`         deliveries to the wire, encoded once for all who get them
- `resend`         what was sent on a former connection and not acknowledged
- `outbox`         bytes to the client, until its socket takes them
- `dispatch`       messages into that outbox, encoded, and in flight
- `outbound`       messages to the client: when they are sent, resent, or have to wait
- `session`        what outlives a connection
- `acknowledging`  what the client's PUBACK, PUBREC and PUBCOMP do
- `inbound_exchanges` what the client publishes at QoS 1 and 2: identifiers and answers
- `inbound`        from the client: PUBLISH, SUBSCRIBE, the window
- `input`          bytes of a peer that are not handled yet, and how far it is read ahead
- `connection`     from the first byte to the last: hands bytes to the decoder, owns the life cycle

Replies go into the outbox; what needs the rest of the node is a call to an interface of `host`, or
stands in `node_state`. Nothing here reads a clock or a socket: `now_s` is an argument, bytes go in
and bytes come out.
"""
