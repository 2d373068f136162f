"""Entry of ``sprocketmq`` and ``python -m sprocketmq``."""

import sys

from sprocketmq.errors import PartNotInstalled

try:
    from sprocketmq.cli.app import main
except PartNotInstalled as e:  # the distribution sprocketmq-client has no command line
    sys.exit(f"sprocketmq: {e}")

if __name__ == "__main__":
    sys.exit(main())
