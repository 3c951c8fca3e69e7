"""Proportions: the cost of a packet among others, as shares of the cost of a lone packet.

The cost of a lone packet is the machine's, and a scenario sets it. The shares are the broker's;
`flowguard calibrate` found them (docs/develop/decisions, number 12). With one cost for each packet
a window of one is free, and it is so in no broker.
"""

from typing import Final

from simulations.scenario import NodePlan, StorePlan

READING: Final = 0.83
"""Share of a lone packet: the read and the answer, for any number of packets."""
SENDING: Final = 0.80
"""Share of a lone delivery: the send and the read at its subscriber."""
QUEUEING: Final = 0.13
"""Share of a stored delivery that comes before the commit, if a message has many subscribers."""
STORING: Final = 0.005
"""Cost of an operation in a commit, as a share of a lone packet."""
HANDOFF: Final = 0.44
"""Cost of a commit in the loop, as a share of the store's time for it."""
WAKING: Final = 1.5
"""Cost of waking up an idle loop, in lone packets."""


def among_others(node: NodePlan, store: StorePlan) -> tuple[NodePlan, StorePlan]:
    """Return node and store, with `publish_s` and `delivery_s` as the costs of lone packets."""
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
