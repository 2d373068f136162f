"""The content of a simulated file: sparse pages, and the ways in which an unsynced write can reach the disk in part."""

import itertools
import random

SECTOR_BYTES = 512
PAGE_BYTES = 4096
_ZEROS = bytes(PAGE_BYTES)


class Content:
    """Sparse bytes: whole pages by number; what is missing is zeros."""

    __slots__ = ("pages", "size")

    def __init__(self, pages: dict[int, bytes] | None = None, size: int = 0) -> None:
        self.pages = {} if pages is None else pages
        self.size = size

    def copy(self) -> "Content":
        return Content(self.pages.copy(), self.size)

    def write(self, data: bytes, offset: int) -> None:
        pages = self.pages
        at = 0
        while at < len(data):
            number, inside = divmod(offset + at, PAGE_BYTES)
            step = min(PAGE_BYTES - inside, len(data) - at)
            if step == PAGE_BYTES:
                pages[number] = data[at : at + step]
            else:
                old = pages.get(number, _ZEROS)
                pages[number] = b"".join((old[:inside], data[at : at + step], old[inside + step :]))
            at += step
        self.size = max(self.size, offset + len(data))

    def read(self, length: int, offset: int) -> bytes:
        end = min(offset + length, self.size)
        parts = []
        while offset < end:
            number, inside = divmod(offset, PAGE_BYTES)
            step = min(PAGE_BYTES - inside, end - offset)
            page = self.pages.get(number, _ZEROS)
            parts.append(page if step == PAGE_BYTES else page[inside : inside + step])
            offset += step
        return b"".join(parts)

    def truncate(self, size: int) -> None:
        if size < self.size:
            number, inside = divmod(size, PAGE_BYTES)
            for page in [page for page in self.pages if page > number or (page == number and not inside)]:
                del self.pages[page]
            if inside and number in self.pages:
                self.pages[number] = self.pages[number][:inside] + bytes(PAGE_BYTES - inside)
        self.size = size


# What happened to a file since its last sync: ("write", offset, bytes) or ("length", new length, b"").
Change = tuple[str, int, bytes]


def apply(content: Content, change: Change) -> None:
    """Apply a whole write or truncation."""
    kind, at, data = change
    if kind == "write":
        content.write(data, at)
    else:
        content.truncate(at)


def _sectors(change: Change) -> list[Change]:
    """Return a write as one change for each 512-byte sector of the file it touches."""
    kind, at, data = change
    if kind != "write" or not data:
        return [change]
    cuts = [0, *range(SECTOR_BYTES - at % SECTOR_BYTES, len(data), SECTOR_BYTES), len(data)]
    return [("write", at + a, data[a:b]) for a, b in itertools.pairwise(cuts)]


def apply_prefix(content: Content, change: Change, rng: random.Random) -> None:
    """Apply a random number of a change's first sectors."""
    sectors = _sectors(change)
    for sector in sectors[: rng.randrange(len(sectors) + 1)]:
        apply(content, sector)


def apply_sectors(content: Content, change: Change, rng: random.Random, chance: float) -> None:
    """Apply each sector of a change with probability ``chance``."""
    for sector in _sectors(change):
        if rng.random() < chance:
            apply(content, sector)
