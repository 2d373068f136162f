"""Entry of ``sprocketmq`` and ``python -m sprocketmq``."""

import sys

from sprocketmq.errors import PartNotInstalled

try:
    from sprocketmq.cli.app import main
except PartNotInstalled as e:  # in sprocketmq-client
    sys.exit(f"sprocketmq: {e}")

if __name__ == "__main__":
    sys.exit(main())
