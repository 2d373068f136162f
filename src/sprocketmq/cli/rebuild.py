"""``sprocketmq rebuild``: make the files that follow from the commit log anew, in place or in another directory."""

import os
from pathlib import Path

from sprocketmq.cli.output import plural, print_json
from sprocketmq.cli.progress import ByteProgress
from sprocketmq.errors import ConfigError
from sprocketmq.storage.inspection import NotAStoreFile

PARTS = ("consumequeue", "batchconsumequeue", "index", "checkpoint")


def parts_of(text: str | None) -> frozenset[str]:
    """Return the parts that ``--only`` names, all without it. Raises ConfigError for a part there is not."""
    if text is None:
        return frozenset(PARTS)
    parts = frozenset(part.strip() for part in text.split(","))
    unknown = sorted(parts - set(PARTS))
    if unknown:
        raise ConfigError(f"--only takes {', '.join(PARTS)} with commas between them, not {unknown[0]!r}")
    return parts


def run(directory: str, *, to: str | None, only: str | None, workers: int, as_json: bool) -> int:
    """Rebuild and print what was made. Raises NotAStoreFile, StoreLocked and what the engine raises."""
    from dataclasses import asdict

    from sprocketmq.storage.overview import StoreDirectory
    from sprocketmq.storage.rebuild import rebuild

    root = os.path.abspath(directory)
    what = parts_of(only)
    if not os.path.isdir(root):
        raise NotAStoreFile(root, "there is no such directory")
    StoreDirectory(root)
    target = None if to is None else Path(os.path.abspath(to))
    if target is not None and (target == Path(root) or Path(root) in target.parents):
        raise ConfigError(f"--to {target} lies in the store itself: name another directory, or leave it out to rebuild in place")
    with ByteProgress("rebuilding") as progress:
        report = rebuild(Path(root), target, what=what, workers=workers, progress=progress)
    if as_json:
        print_json(asdict(report))
    else:
        print(f"rebuilt {', '.join(sorted(what))} in {target or root}: {plural(report.records, 'record')} in {report.elapsed_s:.1f} s")
        for damaged in report.damaged:
            print(f"damaged: {damaged}")
    return 0
