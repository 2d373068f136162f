"""What benchmarks do to the files of a store between rounds."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

DERIVED = ("consumequeue", "batchconsumequeue", "index", "checkpoint", "dispatched")


def drop_derived(root: Path) -> None:
    """Remove everything that follows from the commit log."""
    for name in DERIVED:
        path = root / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def give_back(paths: Iterable[Path]) -> None:
    """Have the system write out files and forget their page cache, as far as they are not mapped."""
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)
