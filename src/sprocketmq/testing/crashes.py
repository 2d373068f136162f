"""Old name of ``sprocketmq.testing.rig.crash_explorer``, kept for one minor version."""

import warnings

from sprocketmq.testing.rig.crash_explorer import *  # noqa: F403

warnings.warn("sprocketmq.testing.crashes is now sprocketmq.testing.rig.crash_explorer", DeprecationWarning, stacklevel=2)
