"""`spark.readStream` on Spark 4.2 and newer, which tells the source where a micro-batch begins and how much it may hold."""

from typing import Any

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from sprocketmq.spark.source.topic_stream import TopicStream


class StreamReader(TopicStream, SupportsTriggerAvailableNow):
    """Reads new messages, micro-batch by micro-batch, each within the limits of its options."""

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        # Spark has no limit of several parts. Which one it passes back does not matter, only whether it is "no limit".
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        return ReadAllAvailable() if options.min_offsets_per_trigger is None else ReadMinRows(options.min_offsets_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self.end_here()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        # Spark asks for everything in one batch with trigger(once=True), whatever the options say.
        return self.next_offset(start, everything=isinstance(limit, ReadAllAvailable))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        # Spark calls this right after latestOffset.
        return self.seen_offset()
