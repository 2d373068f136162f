"""Connections that say nothing, from a process of their own, which has the descriptors: ``python -m tests.fuzz.silent HOST PORT COUNT``.

Prints ``open`` when it has made them all, and holds them until standard input ends. Then it prints how many of them the server has closed.
"""

import contextlib
import select
import socket
import sys


def main(host: str, port: str, count: str) -> None:
    held = [socket.create_connection((host, int(port)), 60) for _ in range(int(count))]
    print("open", flush=True)
    sys.stdin.read()
    poll = select.poll()
    for one in held:
        poll.register(one, select.POLLIN)
    print(len(poll.poll(0)), flush=True)
    for one in held:
        with contextlib.suppress(OSError):
            one.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
