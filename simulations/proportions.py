"""Proportions: what packets cost among others, where one that comes alone costs so much.

`flowguard calibrate` has found them in this broker (docs/calibration.md, "Deviations"). What a
packet costs that comes alone is the machine's, and for a scenario to say; how much less it costs
among others is the broker's. Where it costs the same however few come at once, a window of one is
free, which it is in no broker.
"""

from typing import Final

from simulations.scenario import NodePlan, StorePlan

READING: Final = 0.83
"""Of a packet that comes alone: reading its socket and answering, however many come."""
SENDING: Final = 0.80
"""Of a delivery, the same at its subscriber."""
STORING: Final = 0.005
"""What an operation adds to a commit, by what a packet costs that comes alone."""
HANDOFF: Final = 0.44
"""The loop's part in a commit, by how long the store takes for it, however large it is."""
WAKING: Final = 1.5
"""Waking up where there was nothing to do, by what a packet costs that comes alone."""


def among_others(node: NodePlan, store: StorePlan) -> tuple[NodePlan, StorePlan]:
    """Return the same node, where `publish_s` and `delivery_s` cost one alone; and its store."""
    packet_s, delivery_s = node.publish_s, node.delivery_s
    costs = {
        "read_s": READING * packet_s,
        "publish_s": (1.0 - READING) * packet_s,
        "send_s": SENDING * delivery_s,
        "delivery_s": (1.0 - SENDING) * delivery_s,
        "handoff_s": HANDOFF * store.commit_s,
        "wake_s": WAKING * packet_s,
    }
    return node.model_copy(update=costs), store.model_copy(update={"op_s": STORING * packet_s})
