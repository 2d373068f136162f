"""Pages of docs/internals that the source cites exist, with the heading that is named; no other document is cited by section."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "src").rglob("*.py"))
CITED = re.compile(r"(docs/internals/[\w-]+\.md)(?:#([\w-]+))?")
SECTION = re.compile(r"\b(?:protocol|message-encoding|client-behaviour|storage|spec)\w*,? sections? \d")


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def citations() -> list[tuple[str, str]]:
    return sorted({match.groups(default="") for file in FILES for match in CITED.finditer(file.read_text(encoding="utf-8"))})


@pytest.mark.parametrize(("page", "anchor"), citations())
def test_a_cited_page_and_heading_exist(page, anchor):
    assert (ROOT / page).is_file()
    assert not anchor or anchor in anchors(ROOT / page)


def test_no_document_outside_of_the_repository_is_cited():
    found = {str(file.relative_to(ROOT)): match.group() for file in FILES if (match := SECTION.search(file.read_text(encoding="utf-8")))}
    assert found == {}
