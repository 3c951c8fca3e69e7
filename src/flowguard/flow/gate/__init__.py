"""The limit on CONNECTs in process and the queue of the excess; see `connect_gate`."""
