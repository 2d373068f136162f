"""How Spark finds the formats by itself: it imports every top-level package named ``pyspark_*`` and takes its ``DefaultSource``."""

from importlib import import_module
from typing import Any

from sprocketmq.errors import ConfigError
from sprocketmq.spark.checks import INSTALL, check_packages


def default_source(format_name: str, module: str, class_name: str) -> Any:
    """Return the data source class of a format for Spark to register.

    Where a package is missing or does not fit, it is a class that says so once the format is used: an error while Spark looks for formats
    would take every Python format of the session with it.
    """
    try:
        check_packages()
        return getattr(import_module(module), class_name)
    except ConfigError as e:
        problem = str(e)
    except ImportError as e:
        problem = f"the format {format_name} could not be loaded ({e}): {INSTALL}"
    from pyspark.sql.datasource import DataSource

    class UnusableSource(DataSource):
        """Takes the place of a format that cannot work here."""

        @classmethod
        def name(cls) -> str:
            return format_name

        def __init__(self, options: dict[str, str]) -> None:
            raise ConfigError(problem)

    return UnusableSource
