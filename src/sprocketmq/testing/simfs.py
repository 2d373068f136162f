"""Old name of ``sprocketmq.testing.rig.simulated_disk``, kept for one minor version."""

import warnings

from sprocketmq.testing.rig.simulated_disk import *  # noqa: F403

warnings.warn("sprocketmq.testing.simfs is now sprocketmq.testing.rig.simulated_disk", DeprecationWarning, stacklevel=2)
