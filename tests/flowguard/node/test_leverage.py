"""Windows shrink only as far as that relieves the node: docs/overload.md, "Leverage"."""

from tests.flowguard.node.test_protection import messages, slow


def test_a_store_that_hangs_leaves_the_window_to_clients_with_one_packet_each() -> None:
    """No smaller window could put their work off (docs/overload.md, "Leverage")."""
    stage, (client,) = slow({})
    client.send(*messages(1))
    stage.advance(3)
    assert stage.node.window.limit == 100
    assert stage.node.guard.grant.leverage == 0.0
