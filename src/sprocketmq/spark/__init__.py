"""RocketMQ topics and stores in Spark: formats `rocketmq` and `rocketmq-store`, a ready session. Needs the extra ``sprocketmq[spark]``."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sprocketmq.spark.errors import explain
    from sprocketmq.spark.notebook import QueryHistory, watch
    from sprocketmq.spark.option_values import OptionError
    from sprocketmq.spark.sessions.jre import NoJava, ensure_java
    from sprocketmq.spark.sessions.session import session
    from sprocketmq.spark.sink.data_sink import SinkError
    from sprocketmq.spark.sink.options import ColumnError
    from sprocketmq.spark.sink.row_fields import RowRefused
    from sprocketmq.spark.source.data_source import RocketMQDataSource
    from sprocketmq.spark.source.reading import DataLoss
    from sprocketmq.spark.store.data_source import RocketMQStoreDataSource
    from sprocketmq.spark.version_checks import MissingPackage

__all__ = [
    "ColumnError",
    "DataLoss",
    "MissingPackage",
    "NoJava",
    "OptionError",
    "QueryHistory",
    "RocketMQDataSource",
    "RocketMQStoreDataSource",
    "RowRefused",
    "SinkError",
    "ensure_java",
    "explain",
    "session",
    "watch",
]

_HOMES = {
    "ColumnError": "sink.options",
    "DataLoss": "source.reading",
    "MissingPackage": "version_checks",
    "NoJava": "sessions.jre",
    "OptionError": "option_values",
    "QueryHistory": "notebook",
    "RocketMQDataSource": "source.data_source",
    "RocketMQStoreDataSource": "store.data_source",
    "RowRefused": "sink.row_fields",
    "SinkError": "sink.data_sink",
    "ensure_java": "sessions.jre",
    "explain": "errors",
    "session": "sessions.session",
    "watch": "notebook",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as e:
        if e.name in ("pyspark", "pyarrow", "pandas"):
            from sprocketmq.spark.version_checks import INSTALL

            raise ModuleNotFoundError(f"{e}: Spark needs {INSTALL}", name=e.name) from None
        raise
