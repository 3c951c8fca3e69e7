"""The state of a broker for its operators: it reads the node between two turns and changes nothing.

- `status`     the node at this instant, JSON-ready; the source of everything else here
- `condition`  how the node is, in one sentence
- `explain`    one client: why it is paused, what is dropped for it, what the node decided lately;
               `explain_words` says it in sentences
- `metrics`    the same for Prometheus, made when a scrape asks for it
- `page`       the page that shows all of it, live; `samples`, once a second, are what it is told,
               with the `latency` of late and the loudest `talkers`; `viewers` get them as a stream
- `backup`     a copy of the store, for requests from this machine
- `reload`     certificates, users, keys and rules read anew, for requests from this machine
- `endpoints`  which of these a path asks for
- `http`       the port that serves all of it: `http_connection`, one request and its answer, for
               requests to a name of this broker (`hosts`), and for `callers` that may ask
"""
