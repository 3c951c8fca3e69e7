"""TBMQ's way to an application on Kafka, beside which ours is held.

- `literal`  the published design, as its authors describe it
"""
