"""Print the text of a release, ``python -m deploy.release_notes [VERSION]``: its section of CHANGELOG.md, by default the newest."""

import re
import sys
from pathlib import Path

CHANGELOG = Path(__file__).parents[1] / "CHANGELOG.md"


def section(changelog: str, version: str | None) -> str:
    """Return the section of ``version`` without its heading.

    Raises:
        LookupError: There is none.

    """
    found = re.findall(r"^## (\S+)[^\n]*\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    for name, text in found:
        if version in (None, name):
            return str(text).strip() + "\n"
    raise LookupError(f"CHANGELOG.md has no section {version}, but {', '.join(name for name, _ in found)}")


def main() -> int:
    version = sys.argv[1].removeprefix("v") if len(sys.argv) > 1 else None
    try:
        print(section(CHANGELOG.read_text(encoding="utf-8"), version), end="")
    except LookupError as e:
        print(e.args[0], file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
