"""One broker node without a socket: sessions, routing, wills, the journal.

- `node`            what all conversations run on: their begin and end, expiry, drain
- `connecting`      the path of a CONNECT: capacity, guard, authentication, claim, CONNACK
- `publishing`      the path of a PUBLISH from route to acknowledgement: `in_process` until it is
                    durable, as a `fan_out` where it has many subscribers
- `bursts`          the short way of many PUBLISHes at once; `durable_bursts`: through the journal
- `subscribing`     SUBSCRIBE, UNSUBSCRIBE; `searches` for retained messages for new subscriptions
- `packets`         which of these a client's PUBLISH, SUBSCRIBE or UNSUBSCRIBE goes to
- `plans`           which sessions a topic reaches, worked out once per topic, by `grouping`
- `shared_queues`   which shared subscriptions have a queue; `shared_queue` is one
- `spread_queues`   those that several brokers have together; `spread_queue` is one's part of one
- `full_queues`     publishers that wait for room in a subscriber's queue
- `registry`        sessions: who is who, take-over, expiry, wills; `dead_letters` of what expired;
                    `left_messages` of shared subscriptions
- `journal`         what must be durable before an answer leaves: group commit
- `divided_journal` gives a second one what concerns applications, whose store may be away;
                    `names`: which operations; `apart`: who waits for that; `owed`: wills and dead
                    letters they wait for
- `pages`           what waited for clients while they were away, read and sent by turns
- `start_time`      SUBSCRIBE into the past: when, and whether that may be
- `applications`    which clients consume everything, however far they fall behind
- `log_readers`     who reads the durable log instead of getting messages into a queue; `log_fetch`
                    is a page of it
- `rounds`          who of those with packets and room is run next; `flow/guard` says who has room
- `turns`           what a loop does in a turn, how much of it, and when it lets others run;
                    `ports`: the node's half of the world around it
- `sends`           whose bytes go to their sockets at the end of a slice
- `holdings`        what is held of the memory, counted
- `timers`          keep-alive, connect timeout, session expiry, will delay; what is `due` at a tick
- `partings`        sockets of clients that have left in good order, until the store has that
- `proof_times`     connections that end when the proof of who their client is expires
- `reviews`         rights that are new to a session, and what it had before
- `authentication`  hook points for whoever decides who may do what
- `sys_topics`      `$SYS`, as Mosquitto's users expect it
- `acknowledgements`, `attempts`, `door`  what is told of latency, of those that are no clients yet,
                    and of whether sockets are accepted

Sans-IO: calls come in with `now_s` (seconds since the Unix epoch, monotonic within the process),
bytes go out through outboxes, and whoever drives the node commits its journal
(`flowguard.broker`, or a test's stage).
"""
