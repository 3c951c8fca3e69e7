"""The HTTP port of a broker.

- `http`            listens and serves connections; `http_connection` is one request and its answer
- `hosts`           names of this broker, which requests may be for
- `callers`         callers that may read or change something
- `endpoints`       answers by path
- `turns`           answers are made one at a time
- `ask`             lists, and changes of clients and retained messages
- `page`            the live page; `viewers` get its samples as a stream
- `workers_page`    the first page of several workers
- `backup`          copies the store, for requests from this machine
- `log_levels`      shows or changes the levels of the log
- `drain`           ends the broker slowly
- `reload`          reads certificates, users, keys and rules again, for requests from this machine
"""
