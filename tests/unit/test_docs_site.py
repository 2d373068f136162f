"""The documentation site without building it: every page is in the navigation, and every link leads to a page and a heading that exist."""

import re
from posixpath import dirname, join, normpath

import pytest
from docs.tools.site import (
    DOCS,
    FENCE,
    LANGUAGES,
    LINK,
    ROOT,
    TOOLS,
    anchor,
    navigation,
    navigation_pages,
    outside_code,
    pages,
    sources,
    translation,
)

PAGES = {language: pages(language) for language in LANGUAGES}
PICTURES = {f"images/{path.relative_to(DOCS / 'images')}" for path in (DOCS / "images").rglob("*") if path.is_file()}


def prose(text):
    """Return a text without its code: fenced blocks and spans."""
    return re.sub(r"(`+).+?\1", "", FENCE.sub("", text))


def anchors(text):
    """Return the anchors of a page's headings; a heading that repeats gets a number. Chinese pages name those of the English ones, too."""
    found = set()
    for heading in re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        first = own = anchor(plain)
        number = 0
        while own in found:
            number += 1
            own = f"{first}_{number}"
        found.add(own)
    return found | set(re.findall(r'^<a id="([\w-]+)"></a>$', text, re.MULTILINE))


def broken(page, text, site):
    for link in LINK.findall(prose(text)):
        if re.match(r"https?:", link):
            continue
        path, _, fragment = link.partition("#")
        target = normpath(join(dirname(page), path)) if path else page
        if target not in site and target not in PICTURES:
            yield f"{page}: {link}: no such page"
        elif fragment and fragment not in anchors(site[target]) and not generated(site[target], fragment):
            yield f"{page}: {link}: no such heading"


def generated(text, fragment):
    """Return whether an object of the API reference, which the build fills in, has this anchor."""
    return re.search(rf"^::: {re.escape(fragment)}$", text, re.MULTILINE) is not None


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_link_of_the_site_leads_somewhere(language):
    site = PAGES[language]
    assert [fault for page, text in site.items() for fault in broken(page, text, site)] == []


@pytest.mark.parametrize("page", sorted(sources()))
def test_every_link_of_a_file_leads_to_a_file(page):
    for source in (path for path in (sources()[page], translation(sources()[page])) if path.exists()):
        text = prose(source.read_text(encoding="utf-8"))
        targets = [link.partition("#")[0] for link in LINK.findall(text) if not re.match(r"https?:|#", link)]
        assert [target for target in targets if not (source.parent / target).exists()] == []


def test_the_navigation_has_every_page_once():
    named = list(navigation_pages(navigation("en")))
    assert sorted(named) == sorted(PAGES["en"])


def test_every_section_of_the_navigation_has_a_chinese_name():
    names = (TOOLS / "navigation.yml").read_text(encoding="utf-8").partition("sections_zh:")[2]
    sections = re.findall(r"^ *- ([\w ,-]+):", (TOOLS / "navigation.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert [section for section in sections if f"\n  {section}: " not in names] == []


def test_every_page_begins_with_its_title():
    assert [page for page, text in PAGES["en"].items() if not text.startswith("# ")] == []


def test_links_to_files_that_the_site_shows_elsewhere_are_rewritten():
    assert "(guide/producing.md)" in PAGES["en"]["index.md"]
    assert "(examples.md)" in PAGES["en"]["index.md"]
    assert "../examples.md#retry_and_dead_letterspy" in PAGES["en"]["guide/consuming.md"]
    assert outside_code("a\n```\na\n```\na\n", str.upper) == "A\n```\na\n```\nA\n"
    assert (ROOT / "Makefile").is_file()
