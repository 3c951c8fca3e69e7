"""One broker node without a socket: sessions, routing, wills, admission, the journal.

- `node`            the host of all conversations: their begin and end, expiry, drain
- `connecting`      the path of a CONNECT: capacity, gate, authentication, claim, CONNACK
- `publishing`      the path of a PUBLISH from route to acknowledgement
- `subscribing`     SUBSCRIBE, UNSUBSCRIBE, retained messages for new subscriptions
- `plans`           which sessions a topic reaches, worked out once per topic
- `journal`         what must be durable before an answer leaves: group commit
- `timers`          keep-alive, connect timeout, session expiry, will delay
- `authentication`  hook points for whoever decides who may do what
- `sys_topics`      `$SYS`, as Mosquitto's users expect it

Sans-IO: calls come in with `now_s` (seconds since the Unix epoch, monotonic within the process),
bytes go out through outboxes, and whoever drives the node commits its journal
(`flowguard.broker`, or a test's stage).
"""
