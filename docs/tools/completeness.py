"""Check that type checkers know the types of the API: ``python -m docs.tools.completeness``, which is ``make types``.

pyright counts the symbols of the names that the reference documents, with their methods and attributes, and how many have a type that every
type checker reads in the same way, including the types of other modules that they lead to. ``mypy --strict`` does not say that: it
infers what a program of another type checker may infer differently. The exit status is 1 below ``WANTED``.
"""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from docs.tools.reference import shown

WANTED = 0.98


def defined(name: str) -> str:
    """Return a public name as the module that defines it names it."""
    module, _, attribute = name.rpartition(".")
    found = getattr(importlib.import_module(module), attribute)
    return f"{found.__module__}.{found.__qualname__}" if hasattr(found, "__qualname__") else name


def symbols() -> list[dict[str, Any]]:
    """Return what pyright says of each symbol of the package."""
    command = [sys.executable, "-m", "pyright", "--verifytypes", "sprocketmq", "--ignoreexternal", "--outputjson"]
    # It looks for the package in the environment of the `python` that it finds.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PATH": path})
    try:
        found: list[dict[str, Any]] = json.loads(done.stdout)["typeCompleteness"]["symbols"]
    except (ValueError, KeyError):
        raise SystemExit(f"pyright gave no result:\n{done.stdout[-2000:]}{done.stderr[-2000:]}") from None
    return found


def main() -> int:
    """Print the share and the symbols that lack a type; return the exit status."""
    names = {defined(name) for name in shown()}
    public = [s for s in symbols() if any(s["name"] == name or s["name"].startswith(name + ".") for name in names)]
    lacking = [s for s in public if not s["isTypeKnown"] or s["isTypeAmbiguous"]]
    for symbol in lacking:
        print(symbol["name"], *(said["message"] for said in symbol["diagnostics"]), sep="\n    ")
    known = 1 - len(lacking) / len(public) if public else 0.0
    print(f"the types of {known:.1%} of {len(public)} symbols of the API are known; wanted: {WANTED:.0%}")
    return int(known < WANTED)


if __name__ == "__main__":
    sys.exit(main())
