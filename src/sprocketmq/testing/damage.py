"""Old name of ``sprocketmq.testing.rig.damage``, kept for one minor version."""

import warnings

from sprocketmq.testing.rig.damage import *  # noqa: F403

warnings.warn("sprocketmq.testing.damage is now sprocketmq.testing.rig.damage", DeprecationWarning, stacklevel=2)
