"""RocketMQ topics in Spark: the `rocketmq` data source and a ready local session. Needs the extra ``sprocketmq[spark]``."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sprocketmq.spark.jre import NoJava, ensure_java
    from sprocketmq.spark.option_values import OptionError
    from sprocketmq.spark.reading import DataLoss
    from sprocketmq.spark.session import local_session
    from sprocketmq.spark.source import RocketMQDataSource

__all__ = ["DataLoss", "NoJava", "OptionError", "RocketMQDataSource", "ensure_java", "local_session"]

_HOMES = {
    "DataLoss": "reading",
    "NoJava": "jre",
    "OptionError": "option_values",
    "RocketMQDataSource": "source",
    "ensure_java": "jre",
    "local_session": "session",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as e:
        if e.name in ("pyspark", "pyarrow", "numpy", "pandas"):
            raise ModuleNotFoundError(f"{e}: the Spark source needs pip install 'sprocketmq[spark]'", name=e.name) from None
        raise
