"""RocketMQ topics and stores in Spark: formats `rocketmq` and `rocketmq-store`, a ready session. Needs the extra ``sprocketmq[spark]``."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sprocketmq.spark.checks import MissingPackage
    from sprocketmq.spark.encode import RowRefused
    from sprocketmq.spark.errors import explain
    from sprocketmq.spark.jre import NoJava, ensure_java
    from sprocketmq.spark.notebook import QueryHistory, watch
    from sprocketmq.spark.option_values import OptionError
    from sprocketmq.spark.reading import DataLoss
    from sprocketmq.spark.sessions import session
    from sprocketmq.spark.sink import SinkError
    from sprocketmq.spark.sink_options import ColumnError
    from sprocketmq.spark.source import RocketMQDataSource
    from sprocketmq.spark.store_source import RocketMQStoreDataSource

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
    "ColumnError": "sink_options",
    "DataLoss": "reading",
    "MissingPackage": "checks",
    "NoJava": "jre",
    "OptionError": "option_values",
    "QueryHistory": "notebook",
    "RocketMQDataSource": "source",
    "RocketMQStoreDataSource": "store_source",
    "RowRefused": "encode",
    "SinkError": "sink",
    "ensure_java": "jre",
    "explain": "errors",
    "session": "sessions",
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
            from sprocketmq.spark.checks import INSTALL

            raise ModuleNotFoundError(f"{e}: Spark needs {INSTALL}", name=e.name) from None
        raise
