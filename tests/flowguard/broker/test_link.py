import socket
import time

from flowguard.broker.sockets.link import Link

TICK_S = 0.011
"""The kernel's rounding, and more."""


def test_what_was_sent_before_the_socket_was_accepted_has_waited_since() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        early_s = time.monotonic()
        with socket.create_connection(listener.getsockname()) as client:
            client.sendall(b"CONNECT")
            late_s = time.monotonic()
            time.sleep(0.1)
            sock, _ = listener.accept()
            with sock:
                asked_s = time.monotonic()
                waited_s = Link(sock, 0).waited_s()
                answered_s = time.monotonic()
    assert asked_s - late_s - TICK_S <= waited_s <= answered_s - early_s + TICK_S
