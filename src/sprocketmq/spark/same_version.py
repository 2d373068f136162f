"""Drivers and executors run one version of sprocketmq: what a driver pickles for its executors says which, and they compare.

Python's version is compared by Spark.
"""

from typing import Any

from sprocketmq._version import __version__
from sprocketmq.errors import ConfigError


class VersionMismatch(ConfigError):
    """An executor has another version of sprocketmq than the driver."""

    def __init__(self, driver: str, executor: str) -> None:
        super().__init__(
            f"the driver has sprocketmq {driver}, and an executor has {executor}: install the same version in the Python of all executors"
            " (PYSPARK_PYTHON)"
        )
        self.driver = driver
        self.executor = executor

    def __reduce__(self) -> tuple[type["VersionMismatch"], tuple[str, str]]:
        return type(self), (self.driver, self.executor)


def check_driver_version(driver: str) -> None:
    """Raise VersionMismatch unless ``driver``, the version of sprocketmq that the driver has, is that of this process."""
    if driver != __version__:
        raise VersionMismatch(driver, __version__)


class SameVersion:
    """A base of what drivers pickle. Another version fails to read it with VersionMismatch, before it reads what the object consists of."""

    def __reduce__(self) -> Any:
        return _new, (__version__, type(self)), self.__dict__


def _new(driver: str, kind: Any) -> Any:
    check_driver_version(driver)
    return kind.__new__(kind)
