"""Latencies: gathered in lists, moved to HDR histograms a report at a time, merged, and read as quantiles."""

from collections.abc import Iterable, Sequence

import numpy as np
from hdrh.histogram import HdrHistogram

from sprocketmq.omb.plan import HISTOGRAM_DIGITS, HISTOGRAM_HIGHEST_US, HISTOGRAM_LOWEST_US

# Lower bits than these eleven are lost in a histogram of three digits: 2 * 10^3 sub-buckets, rounded up to a power of two.
_KEPT_BITS = 11


class Latencies:
    """A histogram of microseconds."""

    def __init__(self) -> None:
        self._histogram = HdrHistogram(HISTOGRAM_LOWEST_US, HISTOGRAM_HIGHEST_US, HISTOGRAM_DIGITS)

    def record(self, values_us: "Sequence[int] | np.ndarray[tuple[int], np.dtype[np.int64]]") -> None:
        """Add values; those out of range count as the nearest bound.

        ``record_value`` costs 0.7 us, so values of the same bucket are counted first: 0.15 us a value.
        """
        if not len(values_us):
            return
        values = np.clip(np.asarray(values_us, np.int64), HISTOGRAM_LOWEST_US, HISTOGRAM_HIGHEST_US)
        # frexp's exponent is the number of bits, which is exact below 2^53.
        lost = np.maximum(np.frexp(values.astype(np.float64))[1] - _KEPT_BITS, 0)
        buckets, counts = np.unique(values >> lost << lost, return_counts=True)
        for value, count in zip(buckets.tolist(), counts.tolist(), strict=True):
            self._histogram.record_value(value, count)

    def merge(self, encoded: str) -> None:
        """Add the histogram that ``encode`` returned here or in another program; nothing for an empty text."""
        if encoded:
            self._histogram.decode_and_add(encoded.encode())

    def encode(self) -> str:
        """Return HDR's V2 compressed encoding in Base64; empty when nothing was recorded."""
        return self._histogram.encode().decode() if self.count else ""

    @property
    def count(self) -> int:
        return int(self._histogram.get_total_count())

    @property
    def mean(self) -> float:
        return float(self._histogram.get_mean_value()) if self.count else 0.0

    @property
    def max(self) -> int:
        return int(self._histogram.get_max_value()) if self.count else 0

    def quantile(self, percent: float) -> int:
        """Return the value that ``percent`` of all values do not exceed; 0 when nothing was recorded."""
        return int(self._histogram.get_value_at_percentile(percent)) if self.count else 0

    def quantiles(self, ticks_per_half: int) -> Iterable[tuple[float, int]]:
        """Yield percentages and values, ``ticks_per_half`` for each halving of the distance to 100 %, as HDR's percentile files have."""
        if not self.count:
            return
        for value in self._histogram.get_percentile_iterator(ticks_per_half):
            yield value.percentile_level_iterated_to, value.value_iterated_to
            if value.percentile_level_iterated_to >= 100:
                break


def merged(encoded: Iterable[str]) -> Latencies:
    """Return all histograms as one."""
    whole = Latencies()
    for one in encoded:
        whole.merge(one)
    return whole
