"""The texts of the pages: both languages have the same, and every text that a page uses exists."""

import json
import re
from pathlib import Path

import pytest

import sprocketmq.web
from sprocketmq.web.pages import PAGES

STATIC = Path(sprocketmq.web.__file__).parent / "static"
AREAS = sorted(path.name for path in (STATIC / "i18n/en").iterdir())
USED = re.compile(r"""\b(?:t|has)\(\s*["'`]([^"'`$]+)["'`]""")
VALUES = re.compile(r"\{(\w+)\}")


def texts(language: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for area in AREAS:
        more = json.loads((STATIC / "i18n" / language / area).read_text(encoding="utf-8"))
        assert not set(more) & set(found), f"texts of {area} stand elsewhere, too"
        found |= more
    return found


def test_both_languages_have_the_same_texts():
    english, chinese = texts("en"), texts("zh")
    assert sorted(english) == sorted(chinese)
    assert {key: sorted(VALUES.findall(text)) for key, text in english.items()} == {
        key: sorted(VALUES.findall(text)) for key, text in chinese.items()
    }


@pytest.mark.parametrize("script", sorted(STATIC.rglob("*.js")), ids=lambda path: path.name)
def test_every_text_that_is_used_exists(script):
    missing = [key for key in USED.findall(script.read_text(encoding="utf-8")) if key not in texts("en")]
    # The comments show examples.
    assert [key for key in missing if not key.startswith("topics.") or script.parent.name == "pages"] == []


def test_every_page_has_a_name_and_a_module():
    for page in PAGES:
        assert f"page.{page.name}" in texts("en")
        assert (STATIC / "pages" / f"{page.name}.js").exists()


@pytest.mark.parametrize("script", sorted(STATIC.rglob("*.js")), ids=lambda path: path.name)
def test_nothing_is_parsed_as_html_or_run_as_code(script):
    text = script.read_text(encoding="utf-8")
    for dangerous in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "srcdoc", "DOMParser"):
        assert dangerous not in text


def test_the_pages_load_nothing_from_elsewhere():
    for path in STATIC.rglob("*"):
        if path.suffix in (".js", ".css", ".html"):
            found = re.findall(r"https?://[^\s\"')]+", path.read_text(encoding="utf-8"))
            assert set(found) <= {"http://www.w3.org/2000/svg"}, path


def test_no_style_or_script_stands_in_the_page():
    shell = (STATIC / "shell.html").read_text(encoding="utf-8")
    assert re.findall(r"<script(?![^>]*(?:src=|application/json))|<style|\sstyle=|\son\w+=", shell) == []
