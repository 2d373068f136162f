"""The Python worker daemon of local sessions: ``pyspark.daemon`` without stack traces of workers that are cut off.

A query that has enough rows (``show``, ``limit``) closes the connection to a worker in the middle of its answer, and the worker ends. For
that Spark's daemon prints a stack trace; this one prints nothing.
"""

import os
import socket

from pyspark import daemon

_work = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Run the tasks of one worker as ``pyspark.daemon`` does. Ends the process when Spark has closed the connection."""
    try:
        return _work(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        os._exit(1)


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
