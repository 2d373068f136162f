"""Plan a read of stores in the driver; errors name the option that is wrong."""

from collections.abc import Iterator
from contextlib import contextmanager

from sprocketmq.arrow.store import planning
from sprocketmq.arrow.store.pieces import Piece
from sprocketmq.arrow.store.tables import PathAbsent, ReadRefused, StoreOptions
from sprocketmq.spark.option_values import OptionError
from sprocketmq.spark.store.options import FORMAT
from sprocketmq.storage.fs import REAL_FS, FileSystem


def plan_store(options: StoreOptions, fs: FileSystem = REAL_FS) -> list[list[Piece]]:
    """Return what each task reads, as ``sprocketmq.arrow.store.planning`` plans it. Raises OptionError and StoreDamaged."""
    with _naming_options():
        return planning.plan_store(options, fs)


def check_paths(options: StoreOptions) -> None:
    """Raise OptionError when a path does not exist. The cheap part of planning, for when the DataFrame is made."""
    with _naming_options():
        planning.check_paths(options)


@contextmanager
def _naming_options() -> Iterator[None]:
    try:
        yield
    except ReadRefused as e:
        hint = "; on a cluster every worker must see the store under this path, the driver too" if isinstance(e, PathAbsent) else ""
        raise OptionError(e.argument, f"{e.problem}{hint}", FORMAT) from None
