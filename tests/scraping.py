"""Scrapes of metrics, as Prometheus' own parser reads them."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from sprocketmq.net.address import parse_address

WAIT_S = 60.0


@dataclass(frozen=True)
class Family:
    """One metric: its type, the names of its samples, of their labels, and the bounds of a histogram."""

    kind: str
    samples: frozenset[str]
    labels: frozenset[str]
    bounds: tuple[float, ...]


class Page:
    """The samples of one scrape."""

    def __init__(self, text: str) -> None:
        self._families = list(text_string_to_metric_families(text))

    @property
    def samples(self) -> list[tuple[str, dict[str, str], float]]:
        return [(sample.name, sample.labels, sample.value) for family in self._families for sample in family.samples]

    def families(self) -> dict[str, Family]:
        """Return what there is of each metric, by its name."""
        found = {}
        for family in self._families:
            if family.samples:
                found[family.name] = Family(
                    family.type,
                    frozenset(sample.name for sample in family.samples),
                    frozenset(label for sample in family.samples for label in sample.labels),
                    tuple(sorted({float(sample.labels["le"]) for sample in family.samples if "le" in sample.labels})),
                )
        return found

    def values(self, name: str, *labels: str, **wanted: str) -> dict[tuple[str, ...], float]:
        """Return the values of the samples of a name that have the ``wanted`` labels, by the values of ``labels``."""
        return {
            tuple(found[label] for label in labels): value
            for sample, found, value in self.samples
            if sample == name and wanted.items() <= found.items()
        }

    def value(self, name: str, **wanted: str) -> float:
        """Return the one sample of a name that has these labels."""
        found = [value for sample, labels, value in self.samples if sample == name and wanted.items() <= labels.items()]
        assert len(found) == 1, f"{len(found)} samples {name} {wanted}"
        return found[0]


async def ask_http(address: str, request: bytes) -> tuple[int, str]:
    """Send a request over a connection of its own; return the status and the whole body."""
    reader, writer = await asyncio.open_connection(*parse_address(address))
    try:
        writer.write(request)
        data = await asyncio.wait_for(reader.read(-1), WAIT_S)
    finally:
        writer.close()
    head, _, body = data.partition(b"\r\n\r\n")
    if b"chunked" in head:
        body = b"".join(_chunks(body))
    return int(head.split()[1]), body.decode()


def _chunks(body: bytes) -> Iterable[bytes]:
    while True:
        length, _, body = body.partition(b"\r\n")
        size = int(length, 16)
        if not size:
            assert body == b"\r\n"
            return
        yield body[:size]
        assert body[size : size + 2] == b"\r\n"
        body = body[size + 2 :]


async def scrape(address: str) -> Page:
    """Scrape a broker."""
    status, text = await ask_http(address, b"GET /metrics HTTP/1.1\r\nHost: broker\r\nConnection: close\r\n\r\n")
    assert status == 200, text
    return Page(text)
