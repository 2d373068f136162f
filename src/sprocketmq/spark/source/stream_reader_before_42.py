"""`spark.readStream` on Spark 4.0 and 4.1, which do not tell the source where a micro-batch begins.

Spark then takes what ``latestOffset`` returns as the end of the next micro-batch, always. A new query asks for it first and for the
``initialOffset`` afterwards. A query that continues from a checkpoint begins with ``partitions``, of the last offsets there as beginning
and end, and drops the result (``setLatestSeenOffset`` of its ``PythonMicroBatchStream``). So the beginning is known here all the same.
"""

import logging
from collections.abc import Sequence
from typing import Any

import pyspark
from pyspark.sql.datasource import InputPartition

from sprocketmq.errors import ConfigError
from sprocketmq.spark.source.topic_stream import TopicStream

log = logging.getLogger(__name__)


class StreamReaderBefore42(TopicStream):
    """Reads new messages, micro-batch by micro-batch, each within the limits of its options.

    ``trigger(availableNow=True)`` is one micro-batch there, which the limits cut.
    """

    _initial: dict[str, Any] | None = None
    _start: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        if self._initial is None:
            self._initial = super().initialOffset()
        return self._initial

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802
        if self._start is None:
            self._warn_of_limits()
            self._start = self.initialOffset()
        self._start = self.next_offset(self._start)
        return self._start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if self._start is None:
            self._warn_of_limits()
        elif self._initial not in (None, start) and end == self._start:
            # The query continues from a checkpoint, and yet it asked for the end first.
            raise ConfigError(
                f"Spark {pyspark.__version__} does not tell this source where its micro-batch begins when"
                " spark.sql.streaming.triggerAvailableNowWrapper.enabled is true: set it to false, or use Spark 4.2"
            )
        self._initial = None
        self._start = end
        return super().partitions(start, end)

    def _warn_of_limits(self) -> None:
        limits = {
            "maxOffsetsPerTrigger": self._options.max_offsets_per_trigger,
            "maxBytesPerTrigger": self._options.max_bytes_per_trigger,
            "minOffsetsPerTrigger": self._options.min_offsets_per_trigger,
        }
        given = " and ".join(option for option, limit in limits.items() if limit is not None)
        if given:
            log.warning(
                "Spark %s runs one micro-batch with trigger(availableNow=True), and %s limits it: start the query again until nothing is"
                " left, as land does, or leave the option out with this trigger",
                pyspark.__version__,
                given,
            )
