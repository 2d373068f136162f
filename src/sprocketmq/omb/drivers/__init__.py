"""The drivers: one module for each messaging system, with ``create(config)``."""

import importlib
import pkgutil
from collections.abc import Mapping

from sprocketmq.errors import ConfigError
from sprocketmq.omb.driver import Driver, LoadingDriver


def driver_names() -> list[str]:
    """Return the names of all drivers."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def make_driver(name: str, config: Mapping[str, object]) -> Driver | LoadingDriver:
    """Return the driver ``name``. Raises ConfigError for unknown names, wrong settings and missing packages."""
    known = driver_names()
    if name not in known:
        raise ConfigError(f"there is no driver {name!r}: choose one of {', '.join(known)}")
    made: Driver | LoadingDriver = importlib.import_module(f"{__name__}.{name}").create(config)
    return made
