import socket
import time

from flowguard.broker.link import Link

TICK_S = 0.011
"""What the kernel rounds to, and more."""


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


def test_what_the_kernel_has_is_input_until_it_is_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        sock, _ = listener.accept()
        with sock:
            link = Link(sock, 0)
            assert not link.has_input()
            client.sendall(b"PINGREQ")
            assert sock.recv(1, socket.MSG_PEEK)  # Until it has arrived.
            assert link.has_input()
            assert link.has_input()
            assert sock.recv(100) == b"PINGREQ"
            assert not link.has_input()
            client.close()
            assert not sock.recv(1)  # Until its end has arrived.
            assert not link.has_input()
