"""What local sessions have Spark start instead of ``pyspark.daemon``, which makes its Python workers: the same, but quiet.

A query that has all the rows it wants (``show``, ``limit``) leaves a worker in the middle of its answer, and the worker ends. Spark's own
daemon prints a stack about it; here it ends without a word.
"""

import os
import socket

from pyspark import daemon

_work = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Serve one worker's tasks, as ``pyspark.daemon`` does. Ends the process when nobody takes the answer any more."""
    try:
        return _work(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        os._exit(1)


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
