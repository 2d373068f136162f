"""Merging the metrics pages of several processes into one: pure text, no sockets."""

import re
from collections.abc import Iterable, Iterator

# The HELP and TYPE lines of one metric. Label values have no line feeds, so only comments begin with "# " after one.
_HEADER = re.compile(r"(?:^# [^\n]*\n)+", re.MULTILINE)


def samples_of(page: str) -> dict[str, str]:
    """Return the lines of samples of each metric by its HELP and TYPE lines, in the order of the page."""
    headers = list(_HEADER.finditer(page))
    ends = [*(header.start() for header in headers), len(page)][1:]
    return {header[0]: page[header.end() : end] for header, end in zip(headers, ends, strict=True)}


def merge(pages: Iterable[dict[str, str]]) -> Iterator[str]:
    """Yield one page with the samples of all ``pages``, those of a metric together, as Prometheus' text format demands.

    Series have to differ by a label that each process sets. Samples that several pages have, such as ``target_info 1``, stand there once.
    """
    metrics: dict[str, dict[str, None]] = {}
    for page in pages:
        for header, samples in page.items():
            metrics.setdefault(header, {})[samples] = None
    for header, blocks in metrics.items():
        yield header
        yield from blocks
