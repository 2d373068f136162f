"""The directory tree of a simulated disk, and what a crash leaves of it."""

import errno
import itertools
import os
import random
from collections.abc import Iterable

from sprocketmq.testing.rig.disk_nodes import CrashMode, Directory, NameChange, Node
from sprocketmq.testing.rig.file_content import Change


def path_parts(path: str) -> list[str]:
    """Return the names in a path."""
    return [part for part in path.split("/") if part and part != "."]


def disk_error(number: int, path: str) -> OSError:
    """Return the OSError of an errno."""
    return OSError(number, os.strerror(number), path)


class DiskTree:
    """Directories and files below one root, by name. Lookups raise OSError as the system does."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self.root = self.new_directory()

    def new_directory(self) -> Directory:
        return Directory(next(self._numbers))

    def new_file(self, modified_ms: int) -> Node:
        return Node(next(self._numbers), modified_ms)

    def find(self, path: str) -> Node | Directory:
        target: Node | Directory = self.root
        for part in path_parts(path):
            if isinstance(target, Node):
                raise disk_error(errno.ENOTDIR, path)
            found = target.live.get(part)
            if found is None:
                raise disk_error(errno.ENOENT, path)
            target = found
        return target

    def directory(self, path: str) -> Directory:
        target = self.find(path)
        if isinstance(target, Node):
            raise disk_error(errno.ENOTDIR, path)
        return target

    def place(self, path: str) -> tuple[Directory, str]:
        """Return the directory that a path's last name is in, and that name."""
        parent, _, name = path.rpartition("/")
        return self.directory(parent), name

    def file(self, path: str) -> Node:
        target = self.find(path)
        if isinstance(target, Directory):
            raise disk_error(errno.EISDIR, path)
        return target

    def files(self) -> dict[str, Node]:
        """Return all files by path, sorted."""
        found: dict[str, Node] = {}

        def walk(directory: Directory, prefix: str) -> None:
            for name, target in directory.live.items():
                if isinstance(target, Directory):
                    walk(target, f"{prefix}/{name}")
                else:
                    found[f"{prefix}/{name}"] = target

        walk(self.root, "")
        return dict(sorted(found.items()))

    def directories(self) -> Iterable[Directory]:
        """Yield the directories that exist, or whose removal the disk may have missed."""
        seen = set()
        left = [self.root]
        while left:
            directory = left.pop()
            if directory.number not in seen:
                seen.add(directory.number)
                yield directory
                targets = [*directory.live.values(), *directory.durable.values()]
                targets += [t for c in directory.pending for _, _, t in c.steps if t is not None]
                left += [t for t in targets if isinstance(t, Directory)]

    # --- names ---

    def change_names(self, *steps: tuple[Directory, str, Node | Directory | None]) -> None:
        """Change names as one step: (directory, name, its new target or None)."""
        change = NameChange(next(self._numbers), *steps)
        change.apply(lambda d: d.live)
        for directory in {id(step[0]): step[0] for step in steps}.values():
            directory.pending.append(change)

    @staticmethod
    def sync_names(directory: Directory) -> None:
        """Bring the pending changes of names in one directory to the disk."""
        for change in directory.pending[:]:
            change.apply(lambda d: d.durable)
            for other, _, _ in change.steps:
                if change in other.pending:
                    other.pending.remove(change)

    def put(self, path: str, data: bytes, now_ms: int) -> None:
        """Make or replace a file that is on the disk at once."""
        directory = self.root
        *parents, name = path_parts(path)
        for part in parents:
            found = directory.live.get(part)
            if not isinstance(found, Directory):
                found = directory.live[part] = directory.durable[part] = self.new_directory()
            directory = found
        node = self.new_file(now_ms)
        node.live.write(data, 0)
        node.durable = node.live.copy()
        directory.live[name] = directory.durable[name] = node

    # --- crashes ---

    def crashed(self, rng: random.Random, mode: CrashMode, begun: tuple[Node, Change] | None) -> "DiskTree":
        """Return what a crash leaves; ``begun`` is a write that is being made. This tree stays as it is."""
        after = DiskTree()
        changes = sorted({c.number: c for d in self.directories() for c in d.pending}.values(), key=lambda c: c.number)
        tables: dict[int, dict[str, Node | Directory]] = {}

        def names(directory: Directory) -> dict[str, Node | Directory]:
            return tables.setdefault(directory.number, dict(directory.durable))

        chance = {"drop": 0.0, "keep": 1.0, "cut": 1.0}.get(mode)
        if chance is None:
            chance = rng.choice((0.3, 0.7, 1.0))
        for change in changes:
            if rng.random() < chance:
                change.apply(names)
        files: dict[int, Node] = {}

        def rebuilt(directory: Directory) -> Directory:
            copy = after.new_directory()
            for name, target in names(directory).items():
                if isinstance(target, Directory):
                    copy.live[name] = rebuilt(target)
                else:
                    if target.number not in files:
                        files[target.number] = node = after.new_file(target.modified_ms)
                        node.live = target.crashed(rng, mode, begun[1] if begun and begun[0] is target else None)
                        node.durable = node.live.copy()
                    copy.live[name] = files[target.number]
            copy.durable = dict(copy.live)
            return copy

        after.root = rebuilt(self.root)
        return after
