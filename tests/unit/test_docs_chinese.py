"""The Chinese pages of the documentation: which are missing, which are behind their English page, and that both have the same code."""

import re

import pytest
from docs.tools.site import translation
from docs.tools.translations import behind, code, known_missing, missing, pages

TRANSLATED = {page: source for page, source in pages().items() if translation(source).exists()}
# The number of today: it gets smaller with every page that is translated.
MOST_MISSING = 9


def test_no_page_lacks_a_chinese_version_but_those_that_are_known():
    assert missing() == known_missing(), "translate the page into PAGE.zh.md, or run python -m docs.tools.translations after a translation"
    assert len(missing()) <= MOST_MISSING, "a new page comes with its Chinese version"


def test_no_chinese_page_is_behind_its_english_one():
    assert behind() == [], "bring PAGE.zh.md up to date, then run python -m docs.tools.translations docs/PAGE.md"


@pytest.mark.parametrize("page", TRANSLATED)
def test_both_versions_have_the_same_code_headings_and_links(page):
    english, chinese = (path.read_text(encoding="utf-8") for path in (TRANSLATED[page], translation(TRANSLATED[page])))
    assert code(chinese) == code(english)
    for pattern in (r"^#+ ", r"^\| ", r"\]\([^)]+\)"):
        assert len(re.findall(pattern, chinese, re.MULTILINE)) == len(re.findall(pattern, english, re.MULTILINE)), pattern
