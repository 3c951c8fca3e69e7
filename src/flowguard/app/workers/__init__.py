"""Several processes as one broker: `flowguard serve --workers N` (docs/operate/workers.md).

- `supervisor`   starts the workers, starts one again that has ended, passes signals on
- `process`      one worker as a process, and the lines that it exchanges with the supervisor
- `data_folder`  what workers have in the data directory
- `shares`       the settings of one worker, and its part of what they limit
- `cluster_duty` what the supervisor does as a node of a cluster (docs/operate/cluster.md)
- `node_hosts`   addresses of other nodes, looked up by name
- `readiness`    whether load balancers should send clients
- `cluster_status` the state of the cluster, for `GET /cluster`
- `seat`         one worker as it knows itself, and what connects it with the others
- `machine_http` metrics and status of all workers on one port; `machine_trace`, `machine_metrics`:
                 their traces and metrics; `worker_request`: a request to one of them;
                 `cluster_http`: to one on another node, and changes
"""
