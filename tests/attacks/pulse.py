"""A polite client in a process of its own: sends PINGREQ all the time, and records the answers.

python -I -S pulse.py HOST PORT FILE      # until it is killed

FILE has two doubles for each answer: the times of the request and of the answer, in seconds of the
clock that all processes share (`time.monotonic`). The cost of an attack to its own process is not
in these figures.
"""

import socket
import struct
import sys
import time

ANSWER = struct.Struct("=dd")
BEAT_S = 0.002
CONNECT = b"\x10\x12\0\x04MQTT\x04\x02\0\0\0\x06polite"
CONNACK = b"\x20\x02\0\0"
PINGREQ = b"\xc0\0"
PINGRESP = b"\xd0\0"


def exchange(sock: socket.socket, said: bytes, answer: bytes) -> None:
    """Send and receive. Raises ConnectionError if the answer is another one, or none."""
    sock.sendall(said)
    data = b""
    while len(data) < len(answer):
        more = sock.recv(len(answer) - len(data))
        if not more:
            raise ConnectionError("the connection has ended")
        data += more
    if data != answer:
        raise ConnectionError(f"answered {data!r}")


def main(host: str, port: int, file: str) -> None:
    with socket.create_connection((host, port)) as sock, open(file, "ab", buffering=0) as answers:
        exchange(sock, CONNECT, CONNACK)
        while True:
            asked_s = time.monotonic()
            exchange(sock, PINGREQ, PINGRESP)
            answers.write(ANSWER.pack(asked_s, time.monotonic()))
            time.sleep(BEAT_S)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
