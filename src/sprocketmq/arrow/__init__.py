"""Topics and store files as Arrow batches, without a JVM: ``read_topic``, ``follow``, ``read_store``. Needs ``sprocketmq[arrow]``."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sprocketmq.arrow.batches import Batches
    from sprocketmq.arrow.schema import COLUMNS, DEFAULT_COLUMNS, arrow_schema
    from sprocketmq.arrow.stores import read_store
    from sprocketmq.arrow.topics import MessagesMissing, TopicGone, follow, read_topic

__all__ = [
    "COLUMNS",
    "DEFAULT_COLUMNS",
    "Batches",
    "MessagesMissing",
    "TopicGone",
    "arrow_schema",
    "follow",
    "read_store",
    "read_topic",
]

_HOMES = {
    "COLUMNS": "schema",
    "DEFAULT_COLUMNS": "schema",
    "Batches": "batches",
    "MessagesMissing": "topics",
    "TopicGone": "topics",
    "arrow_schema": "schema",
    "follow": "topics",
    "read_store": "stores",
    "read_topic": "topics",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as e:
        if e.name == "pyarrow":
            raise ModuleNotFoundError(f"{e}: Arrow batches need pip install 'sprocketmq[arrow]'", name=e.name) from None
        raise
