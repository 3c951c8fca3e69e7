"""The state of a broker for its operators: it reads the node between two turns and changes nothing.

- `catalogue`  what is measured, with its names and help; `pressure` has the latest decisions
- `common`     the parts of it that the proxy has, too
- `view`       the node, as the HTTP port reads it
- `status`     the node at this instant, JSON-ready
- `condition`  the condition of the node, in one sentence
- `clients`    all clients, in pages
- `explain`    one client: why it is paused, what is dropped for it, what the node decided lately;
               `explain_words` says it in sentences
- `metrics`    the node at a scrape, for Prometheus
- `queued`     the number of queued messages, counted for a scrape
- `trace`      packets and decisions of chosen clients
- `samples`    the node once a second, for the page, with its `latency` and the busiest `talkers`
- `web`        the HTTP port
"""
