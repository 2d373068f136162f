"""Files and directories of a simulated disk: what programs see, what the disk holds, and the changes in between."""

import mmap
import random
from typing import TYPE_CHECKING, Final, Literal

from sprocketmq.testing.rig.file_content import PAGE_BYTES, Change, Content, apply, apply_prefix, apply_sectors

if TYPE_CHECKING:
    from collections.abc import Callable

CrashMode = Literal["drop", "keep", "cut", "reorder", "torn"]

MODES: Final[tuple[CrashMode, ...]] = ("drop", "keep", "cut", "reorder", "torn")
POWER_LOSS_MODES: Final[tuple[CrashMode, ...]] = ("drop", "reorder", "torn")
KILL_MODES: Final[tuple[CrashMode, ...]] = ("keep", "cut")

# Larger views are anonymous mappings, which cost memory only where something was written.
_SMALL_VIEW_BYTES = 1 << 20


class Node:
    """One file, whatever its names are: what programs see, what the disk has, and the changes in between."""

    __slots__ = ("durable", "live", "locked", "lost", "modified_ms", "number", "pending", "reserved", "views")

    def __init__(self, number: int, modified_ms: int) -> None:
        self.number = number
        self.live = Content()
        self.durable = Content()
        self.pending: list[Change] = []
        self.lost = False  # a failed sync left pages in memory that will never be written
        self.locked = False
        self.reserved: set[int] = set()
        self.views: dict[int, memoryview] = {}
        self.modified_ms = modified_ms

    def change(self, change: Change, now_ms: int) -> None:
        kind, at, data = change
        before = self.live.size
        apply(self.live, change)
        self.pending.append(change)
        self.modified_ms = now_ms
        for length, view in self.views.items():
            if kind == "write":
                end = min(at + len(data), length)
                if at < end:
                    view[at:end] = data[: end - at]
            elif at < min(before, length):
                end = min(before, length)
                view[at:end] = bytes(end - at)

    def sync(self) -> None:
        if self.pending:
            if self.lost:
                for change in self.pending:
                    apply(self.durable, change)
            else:
                self.durable = self.live.copy()
            self.pending.clear()

    def view(self, length: int) -> memoryview:
        view = self.views.get(length)
        if view is None:
            if length <= _SMALL_VIEW_BYTES:
                view = memoryview(bytearray(length))
            else:
                view = memoryview(mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
            for number, page in self.live.pages.items():
                at = number * PAGE_BYTES
                if at < length:
                    view[at : at + PAGE_BYTES] = page[: length - at]
            self.views[length] = view
        return view.toreadonly()

    def crashed(self, rng: random.Random, mode: CrashMode, begun: Change | None) -> Content:
        """Return what is left of the file; ``begun`` is a write that is being made."""
        if mode == "drop":
            return self.durable.copy()
        if mode in {"keep", "cut"}:
            content = self.live.copy()
            if mode == "cut" and begun is not None:
                apply_prefix(content, begun, rng)
            return content
        content = self.durable.copy()
        pending = self.pending if begun is None else [*self.pending, begun]
        if not pending:
            return content
        if mode == "reorder":
            chance = rng.choice((0.2, 0.5, 0.8))
            for change in pending:
                if rng.random() < chance:
                    apply(content, change)
            return content
        if rng.random() < 0.5:  # as a log often ends: all up to one write, and of that one some sectors
            whole = rng.randrange(len(pending))
            for change in pending[:whole]:
                apply(content, change)
            if rng.random() < 0.5:
                apply_prefix(content, pending[whole], rng)
            else:
                apply_sectors(content, pending[whole], rng, 0.5)
            return content
        chance = rng.choice((0.1, 0.5, 0.9))
        for change in pending:
            apply_sectors(content, change, rng, chance)
        return content


class Directory:
    """A directory: names as programs see them and as the disk has them, and the changes in between."""

    __slots__ = ("durable", "live", "number", "pending")

    def __init__(self, number: int) -> None:
        self.number = number
        self.live: dict[str, Node | Directory] = {}
        self.durable: dict[str, Node | Directory] = {}
        self.pending: list[NameChange] = []


class NameChange:
    """One change of names that happens as a whole: (directory, name, what the name stands for from now on or None)."""

    __slots__ = ("number", "steps")

    def __init__(self, number: int, *steps: "tuple[Directory, str, Node | Directory | None]") -> None:
        self.number = number
        self.steps = steps

    def apply(self, names: "Callable[[Directory], dict[str, Node | Directory]]") -> None:
        for directory, name, target in self.steps:
            if target is None:
                names(directory).pop(name, None)
            else:
                names(directory)[name] = target
