"""The path of a PUBLISH, from its topic to its acknowledgement.

- `packets`           which part of the node handles a PUBLISH, SUBSCRIBE or UNSUBSCRIBE
- `publishing`        route, store, retain, acknowledge
- `deliveries`        admits and delivers to the sessions and queues of a plan
- `plans`             the sessions that a topic reaches, computed once per topic
- `grouping`          the groups of equal subscriptions in a plan
- `bursts`            many PUBLISHes at once at QoS 0
- `durable_bursts`    many PUBLISHes at once through the journal
- `relayed_bursts`    many PUBLISHes at once for sessions of peers
- `fan_out`           a PUBLISH with many subscribers, delivered by slices
- `incoming`          a PUBLISH and what it counts in the window of its client
- `in_process`        publishes until they are durable
- `retaining`         changes of retained messages
- `full_queues`       publishers that wait for capacity in the queue of a subscriber
- `acknowledgements`  reports of the latency of acknowledgements
"""
