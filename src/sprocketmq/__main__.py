"""Entry of ``sprocketmq`` and ``python -m sprocketmq``."""

import sys

from sprocketmq.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
