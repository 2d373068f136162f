"""Errors of landed tables: what is wrong with the directory, and what to do about it."""

import os
from collections.abc import Sequence

from sprocketmq.errors import ConfigError, FatalError


class NotALandingTable(ConfigError):
    """A path is not a landed table and cannot become one."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        reason: str,
        next_step: str = "name a directory that is empty or not there yet, or one landed to before",
    ) -> None:
        super().__init__(f"{path} is not a landed table: {reason}; {next_step}")
        self.path = os.fspath(path)
        self.reason = reason


class TableMismatch(ConfigError):
    """A landing asks for other topics, columns or partitions than its table has."""

    def __init__(self, path: str | os.PathLike[str], what: str, has: Sequence[str], wanted: Sequence[str]) -> None:
        super().__init__(
            f"the table {path} was made with {what} {', '.join(has) or 'none'}, not {', '.join(wanted) or 'none'}:"
            f" land with what it has, or into another directory"
        )
        self.path = os.fspath(path)
        self.what = what
        self.has = tuple(has)
        self.wanted = tuple(wanted)


class TableBusy(FatalError):
    """Another process writes to the table."""

    def __init__(self, path: str | os.PathLike[str], reason: str) -> None:
        super().__init__(f"the table {path} is being written by another process ({reason}): wait for it, or stop it")
        self.path = os.fspath(path)
        self.reason = reason


class TableNotWritable(FatalError):
    """The directory of the table cannot be created or written."""

    def __init__(self, path: str | os.PathLike[str], error: OSError) -> None:
        super().__init__(
            f"cannot write to {path}: {error.strerror or error}; make room there or change its permissions, or land into another directory"
        )
        self.path = os.fspath(path)
        self.reason = error.strerror or str(error)


class TableDamaged(FatalError):
    """A file of the table is missing, or differs from its manifest."""

    def __init__(self, path: str | os.PathLike[str], reason: str) -> None:
        super().__init__(f"{path}: {reason}; restore it from a copy, or remove the table and land again")
        self.path = os.fspath(path)
        self.reason = reason
