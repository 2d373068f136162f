"""Build the documentation site: ``python -m docs.tools.site``, or ``make docs``.

The site has one MkDocs build for each language, ``build/site`` and ``build/site/zh``, so that each has a search index of its own. The pages
come from ``docs/`` and from a few files elsewhere (README, ARCHITECTURE ...), whose links are rewritten. A page without a Chinese version
is shown in English.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TOOLS = DOCS / "tools"
WORK = ROOT / "build/docs"
SITE = ROOT / "build/site"
LANGUAGES = ("en", "zh")

# Files outside of docs/ that are pages of the site.
ELSEWHERE = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changes.md",
    "benchmarks/README.md": "benchmarks.md",
}
FOLDERS = {
    "examples": "examples.md",
    "benchmarks/results": "benchmarks.md",
    "docs/internals": "architecture.md",
    "docs/adr": "architecture.md",
}
# How much the search counts what it finds on a page; guides count once. Names of the reference are found by typing them.
SEARCH_BOOST = {
    "guide/questions.md": 4,
    "reference/": 0.1,
    "examples.md": 0.1,
    "changes.md": 0.1,
    "internals/": 0.3,
    "benchmarks.md": 0.3,
    "adr/": 0.3,
}
UNTRANSLATED = '!!! note ""\n    本页尚无中文版，以下为英文原文。\n\n'

LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
FENCE = re.compile(r"^( *)(```+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
# The READMEs link to each other; on the site the switch in the header does that.
OTHER_README = re.compile(r" ?\[[^\]]+\]\(README(?:\.zh)?\.md\)")


def sources() -> dict[str, Path]:
    """Return the file of each English page of the site, by the page's path; generated pages are not among them."""
    inside = {
        str(path.relative_to(DOCS)): path
        for path in sorted(DOCS.rglob("*.md"))
        if not path.name.endswith(".zh.md") and TOOLS not in path.parents
    }
    return inside | {page: ROOT / source for source, page in ELSEWHERE.items()}


def translation(source: Path) -> Path:
    """Return where the Chinese version of a page lies, which may not exist."""
    return source.with_name(f"{source.stem}.zh.md")


def examples() -> str:
    """Return the page that shows the programs of ``examples/``."""
    parts = [
        "# Examples\n\nEach program runs by itself, with a broker of its own; the tests run them all. They are in the folder `examples`.\n"
    ]
    for path in sorted((ROOT / "examples").rglob("*.py")):
        code = path.read_text(encoding="utf-8")
        parts.append(f"## {path.relative_to(ROOT / 'examples')}\n\n```python\n{code.rstrip()}\n```\n")
    return "\n".join(parts)


def anchor(heading: str) -> str:
    """Return the anchor of a heading, as GitHub makes it and MkDocs is told to."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def site_target(target: str) -> str:
    """Return the page of the site that a path of the repository is shown on; images and other files stay what they are."""
    if target in ELSEWHERE:
        return ELSEWHERE[target]
    if target in FOLDERS:
        return FOLDERS[target]
    if target.startswith("examples/"):
        return "examples.md" + (f"#{anchor(target.removeprefix('examples/'))}" if target.endswith(".py") else "")
    return target.removeprefix("docs/")


def on_site(text: str, source: str, page: str) -> str:
    """Return the text of the file ``source`` of the repository with its links as the site's ``page`` needs them."""

    def rewritten(match: re.Match[str]) -> str:
        link = match[1]
        if ":" in link or link.startswith("#"):
            return link
        path, _, fragment = link.partition("#")
        target = site_target(normpath(str(PurePosixPath(source).parent / path)))
        target, _, own = target.partition("#")
        return relpath(target, str(PurePosixPath(page).parent)) + (f"#{fragment or own}" if fragment or own else "")

    return outside_code(OTHER_README.sub("", text), lambda prose: LINK.sub(rewritten, prose))


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Return ``text`` with ``change`` made to everything but fenced blocks."""
    parts, end = [], 0
    for fence in FENCE.finditer(text):
        parts += [change(text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, change(text[end:])])


def pages(language: str) -> dict[str, str]:
    """Return the text of each page of the site in ``language``, by its path."""
    found = {}
    for page, source in sources().items():
        text, prefix = source.read_text(encoding="utf-8"), ""
        if language == "zh":
            chinese = translation(source)
            text, prefix = (chinese.read_text(encoding="utf-8"), "") if chinese.exists() else (text, UNTRANSLATED)
        text = on_site(text, str(source.relative_to(ROOT)), page)
        found[page] = re.sub(r"^(# .+\n)\n?", rf"\1\n{prefix}", text, count=1)
    return found | {"examples.md": examples()}


def navigation(language: str) -> list[Any]:
    """Return MkDocs' navigation, its sections named in ``language``."""
    read = yaml.safe_load((TOOLS / "navigation.yml").read_text(encoding="utf-8"))
    names = read["sections_zh"] if language == "zh" else {}

    def named(items: list[Any]) -> list[Any]:
        return [
            item if isinstance(item, str) else {names.get(k, k): v if isinstance(v, str) else named(v) for k, v in item.items()}
            for item in items
        ]

    return named(read["pages"])


def navigation_pages(items: list[Any] | str) -> Iterator[str]:
    if isinstance(items, str):
        yield items
        return
    for item in items:
        for inside in [item] if isinstance(item, str) else item.values():
            yield from navigation_pages(inside)


def stage(language: str) -> Path:
    """Write pages, images and configuration of one language into the work directory; return the configuration's path."""
    work = WORK / language
    shutil.rmtree(work, ignore_errors=True)
    for page, text in pages(language).items():
        (work / "docs" / page).parent.mkdir(parents=True, exist_ok=True)
        boost = next((boost for start, boost in SEARCH_BOOST.items() if page.startswith(start)), None)
        head = f"---\nsearch:\n  boost: {boost}\n---\n\n" if boost else ""
        (work / "docs" / page).write_text(head + text, encoding="utf-8")
    shutil.copytree(DOCS / "images", work / "docs/images")
    shutil.copytree(TOOLS / "assets", work / "docs/assets")
    shutil.copytree(TOOLS / "overrides", work / "overrides")
    config = (TOOLS / "mkdocs.yml").read_text(encoding="utf-8")
    site = SITE / "zh" if language == "zh" else SITE
    added = {"docs_dir": str(work / "docs"), "site_dir": str(site), "nav": navigation(language)}
    config += "".join(f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in added.items())
    (work / "mkdocs.yml").write_text(config, encoding="utf-8")
    return work / "mkdocs.yml"


def main() -> int:
    for language in LANGUAGES:  # English first: its build empties the directory that holds the other
        environment = os.environ | {"SITE_LANGUAGE": language, "SITE_SOURCES": str(ROOT / "src"), "NO_MKDOCS_2_WARNING": "1"}
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(stage(language))]
        if code := subprocess.run(command, env=environment, check=False).returncode:
            return code
    print(f"{SITE / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
