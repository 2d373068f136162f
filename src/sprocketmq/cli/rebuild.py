"""``sprocketmq rebuild``: rebuild the derived files of a store from its commit log, in place or in another directory."""

import os
from pathlib import Path

from sprocketmq.cli.output import plural, print_json
from sprocketmq.cli.progress import ByteProgress
from sprocketmq.errors import ConfigError
from sprocketmq.storage.inspect.items import NotAStoreFile


def parts_of(text: str | None) -> tuple[str, ...]:
    """Return the parts that ``--only`` names, all without it. Raises ConfigError for an unknown part."""
    from sprocketmq.storage.bulk.rebuild import DERIVED

    if text is None:
        return DERIVED
    parts = [part.strip() for part in text.split(",")]
    unknown = [part for part in parts if part not in DERIVED]
    if unknown:
        raise ConfigError(f"--only takes {', '.join(DERIVED)}, separated by commas, not {unknown[0]!r}")
    return tuple(parts)


def run(directory: str, *, to: str | None, only: str | None, workers: int, as_json: bool) -> int:
    """Rebuild and print the result. Raises NotAStoreFile, StoreLocked and what the engine raises."""
    from dataclasses import asdict

    from sprocketmq.storage.bulk.rebuild import rebuild
    from sprocketmq.storage.inspect.store_directory import StoreDirectory

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
        print(
            f"made {', '.join(report.what)} in {report.target} from {plural(report.records, 'record')} "
            f"in {report.elapsed_ms / 1000:.1f} s: {plural(report.queues, 'queue')}, {report.index_entries:,} index entries"
        )
        for damaged in report.damaged:
            print(f"damaged, and its messages lost: {damaged.path}, log offsets {damaged.start} to {damaged.end}")
    return 0
