"""A Python that has some installed packages and no others, as a machine of somebody else's cluster has."""

from __future__ import annotations

import re
import venv
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path


def bare_python(home: Path, *packages: str) -> str:
    """Make an environment with ``packages``, which are installed here, and what they need; return its interpreter. Nothing is downloaded."""
    venv.create(home, symlinks=True)
    (target,) = home.glob("lib/python*/site-packages")
    left, seen = [*packages], set()
    while left:
        package = left.pop()
        try:
            found = distribution(package)
        except PackageNotFoundError:  # a requirement of other versions of Python
            assert package not in packages, package
            continue
        seen.add(package)
        left += {re.split(r"[^\w.-]", text)[0] for text in found.requires or () if "extra ==" not in text} - seen
        for top in {file.parts[0] for file in found.files or () if not file.parts[0].startswith((".", "__"))}:
            if not (target / top).exists():
                (target / top).symlink_to(str(found.locate_file(top)))
    return str(home / "bin" / "python")
