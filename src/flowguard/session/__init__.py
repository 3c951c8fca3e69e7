"""The server's side of one MQTT conversation, sans-IO, split by direction.

- `connection`     from the first byte to the last: hands bytes to the decoder, owns the life cycle
- `handshake`      what CONNECT may say and what CONNACK answers
- `inbound`        from the client: PUBLISH, PUBREL, SUBSCRIBE, the window, topic aliases
- `outbound`       to the client: outbox, queue, inflight messages, resend
- `acknowledging`  what the client's PUBACK, PUBREC and PUBCOMP do
- `inflight`       bytes of messages sent and unacknowledged, for the whole node
- `backlog`        messages that wait, in memory and on disk; `fetch` asks the store for a page
- `owner`          whose they are: a session, or a shared subscription that it is a member of
                   (`membership`)
- `aliases`        topic aliases that we set
- `frames`         deliveries to the wire, encoded once for all who get them
- `replay`         retained messages for new subscriptions, a slice at a time
- `resend`         what was sent on a former connection and not acknowledged
- `session`        what outlives a connection
- `state`          what is kept for a client besides messages, in bytes
- `host`           what a conversation needs from the node it runs on: its `counters`, and `chores`,
                   which are done piece by piece

Replies go into the outbox; what needs the rest of the node is a call to the `Host`. Nothing here
reads a clock or a socket: `now_s` is an argument, bytes go in and bytes come out.
"""
