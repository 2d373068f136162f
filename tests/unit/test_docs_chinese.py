"""The Chinese pages of the documentation: that none is missing or behind its English page, and that both have the same code."""

import re

import pytest
from docs.tools.site import translation
from docs.tools.translations import behind, code, missing, pages

TRANSLATED = {page: source for page, source in pages().items() if translation(source).exists()}


def test_every_page_has_a_chinese_version():
    assert missing() == [], "translate the page into PAGE.zh.md, then run python -m docs.tools.translations docs/PAGE.md"


def test_no_chinese_page_is_behind_its_english_one():
    assert behind() == [], "bring PAGE.zh.md up to date, then run python -m docs.tools.translations docs/PAGE.md"


@pytest.mark.parametrize("page", TRANSLATED)
def test_both_versions_have_the_same_code_headings_and_links(page):
    english, chinese = (path.read_text(encoding="utf-8") for path in (TRANSLATED[page], translation(TRANSLATED[page])))
    assert code(chinese) == code(english)
    for pattern in (r"^#+ ", r"^\| ", r"\]\([^)]+\)"):
        assert len(re.findall(pattern, chinese, re.MULTILINE)) == len(re.findall(pattern, english, re.MULTILINE)), pattern
