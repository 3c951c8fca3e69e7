"""The proxy for its operators: interfaces of flowguard's HTTP port and logs.

- `face`       the proxy as logs and measurements read it
- `catalogue`  everything that is measured
- `view`       the proxy as the HTTP port reads it
- `explain`    one client: why it waits
- `clients`    rows of the list of clients, and the end of a connection
- `life_log`   log lines of clients that connect, disconnect or are rejected
- `reload`     certificates and limits are read again
- `probes`     asks upstreams without clients whether they answer
"""
