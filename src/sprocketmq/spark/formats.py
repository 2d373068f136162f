"""Lets Spark find the formats by itself: it imports every top-level package named ``pyspark_*`` and uses its ``DefaultSource``."""

from importlib import import_module
from typing import Any, ClassVar

from pyspark.sql.datasource import DataSource

from sprocketmq.errors import ConfigError
from sprocketmq.spark.version_checks import INSTALL, check_packages


class LazySource(DataSource):
    """A placeholder for a data source that is imported on first use.

    Spark imports all formats in every session that uses any Python format. So the import must be quick, and must not fail for a missing or
    incompatible package; that is reported when this format is used.
    """

    format_name: ClassVar[str]
    module: ClassVar[str]
    class_name: ClassVar[str]

    @classmethod
    def name(cls) -> str:
        return cls.format_name

    def _source(self) -> DataSource:
        """Return the data source itself. Raises MissingPackage, or ConfigError when it cannot be imported."""
        check_packages()
        try:
            source: DataSource = getattr(import_module(self.module), self.class_name)(self.options)
        except ImportError as e:
            raise ConfigError(f"the format {self.format_name} could not be loaded ({e}): {INSTALL}") from e
        return source

    def schema(self) -> Any:
        return self._source().schema()

    def reader(self, schema: Any) -> Any:
        return self._source().reader(schema)

    def writer(self, schema: Any, overwrite: bool) -> Any:
        return self._source().writer(schema, overwrite)

    def streamReader(self, schema: Any) -> Any:  # noqa: N802 - Spark's name
        return self._source().streamReader(schema)

    def simpleStreamReader(self, schema: Any) -> Any:  # noqa: N802
        return self._source().simpleStreamReader(schema)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802
        return self._source().streamWriter(schema, overwrite)
