"""Check that the packages Spark needs are installed in compatible versions. Errors say in one sentence what to install."""

import re
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from sprocketmq.errors import ConfigError

INSTALL = "pip install 'sprocketmq[spark]'"
# Package: purpose, first compatible version, first incompatible one (None: none known). Lower bounds are those of pyproject.toml.
NEEDED = {
    "pyspark": ("the data source API with Arrow writers", (4, 0), (5,)),
    "pyarrow": ("every row is handed over as Arrow", (18,), None),
    "pandas": ("PySpark asks for it with Arrow", (2, 2), None),
}


class MissingPackage(ConfigError):
    """A package is not installed, or not in a compatible version; ``found`` is the installed version, or None."""

    def __init__(self, package: str, problem: str, *, command: str = INSTALL, found: str | None = None) -> None:
        super().__init__(f"{problem}: {command}")
        self.package = package
        self.found = found


def check_packages() -> None:
    """Raise MissingPackage for the first missing or incompatible package. Imports none of them."""
    for package, (reason, low, high) in NEEDED.items():
        found = installed_version(package)
        bounds = f"{_dotted(low)} or newer" if high is None else f"{_dotted(low)} or newer, below {_dotted(high)}"
        if found is None:
            raise MissingPackage(package, f"Spark needs the package {package} ({reason}), which is not installed")
        number = parse_version(found)
        if number < low or (high is not None and number >= high):
            command = f"pip install '{package}>={_dotted(low)}{'' if high is None else f',<{_dotted(high)}'}'"
            problem = f"{package} {found} does not work here, it has to be {bounds} ({reason})"
            raise MissingPackage(package, problem, command=command, found=found)


def require(package: str, purpose: str, command: str) -> None:
    """Raise MissingPackage unless ``package`` can be imported; ``purpose`` begins the sentence ("the plot")."""
    if find_spec(package) is None:
        raise MissingPackage(package, f"{purpose} needs the package {package}, which is not installed", command=command)


def installed_version(package: str) -> str | None:
    """Return the version of an installed package ("0" without metadata), None when it cannot be imported."""
    try:
        if find_spec(package) is None:
            return None
    except ValueError:  # it is in sys.modules as None, or without a spec
        return None
    try:
        return version(package)
    except PackageNotFoundError:
        # Some vendors put PySpark on the path without package metadata.
        from importlib import import_module

        return str(getattr(import_module(package), "__version__", "0"))


def spark_version() -> tuple[int, ...]:
    """Return the version of the installed PySpark, (0,) when there is none."""
    return parse_version(installed_version("pyspark") or "0")


def parse_version(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: "4.3.0.dev1" is (4, 3, 0)."""
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def _dotted(number: tuple[int, ...]) -> str:
    return ".".join(map(str, number))
