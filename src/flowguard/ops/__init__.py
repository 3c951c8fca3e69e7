"""The state of a broker for its operators: it reads the node between two turns and changes nothing.

- `status`     the node at this instant, JSON-ready; the source of everything else here
- `condition`  how the node is, in one sentence
- `explain`    one client: why it is paused, what is dropped for it, what the node decided lately;
               `explain_words` says it in sentences
- `metrics`    the same for Prometheus, made when a scrape asks for it
- `samples`    the node once a second, for the page, with its `latency` and the loudest `talkers`
- `web`        the HTTP port
"""
