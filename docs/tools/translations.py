"""Which pages lack a Chinese version, and which Chinese versions are behind.

``python -m docs.tools.translations PAGE...`` records that PAGE is up to date. The last line of ``PAGE.zh.md`` has a fingerprint of the
English text that it was translated from. The reference, which is made from the code, is English only. A heading that other pages link to
keeps its English anchor by a line ``<a id="..."></a>`` above it.
"""

import hashlib
import re
import sys
from pathlib import Path

from docs.tools.site import FENCE, ROOT, sources, translation

RECORDED = re.compile(r"\n<!-- english: ([0-9a-f]{16}) -->\n\Z")
# The two READMEs are compared by tests/unit/test_readme_promises.py; the others are long lists for developers.
EXEMPT = ("index.md", "changes.md", "architecture.md", "benchmarks.md", "reference/", "adr/")


def fingerprint(english: str) -> str:
    return hashlib.sha256(english.encode()).hexdigest()[:16]


def pages() -> dict[str, Path]:
    """Return the English file of each page that should have a Chinese version, by the page's path."""
    return {page: source for page, source in sources().items() if not page.startswith(EXEMPT)}


def missing() -> list[str]:
    return sorted(page for page, source in pages().items() if not translation(source).exists())


def behind() -> list[str]:
    """Return the pages whose English text has changed since the Chinese one was made."""
    return sorted(page for page, source in pages().items() if translation(source).exists() and not is_current(source))


def is_current(source: Path) -> bool:
    recorded = RECORDED.search(translation(source).read_text(encoding="utf-8"))
    return recorded is not None and recorded[1] == fingerprint(source.read_text(encoding="utf-8"))


def record(source: Path) -> None:
    """Write down that the Chinese version is one of the present English text."""
    text = RECORDED.sub("\n", translation(source).read_text(encoding="utf-8")).rstrip("\n")
    english = fingerprint(source.read_text(encoding="utf-8"))
    translation(source).write_text(f"{text}\n\n<!-- english: {english} -->\n", encoding="utf-8")


def code(text: str) -> list[str]:
    """Return the fenced blocks of a page without the comments of their lines."""
    return [re.sub(r" +#.*", "", fence[0]) for fence in FENCE.finditer(text)]


if __name__ == "__main__":
    for name in sys.argv[1:]:
        record(ROOT / name)
