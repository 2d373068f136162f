"""Check that the search of the built site answers what users asked: ``python -m docs.tools.questions``, the end of ``make docs``.

The site's own index is searched as its script does it: words of a query are alternatives, each may be the beginning of a word, titles
count a thousand times as much as text, and sections that have more of the words count more. ``docs/tools/questions.yml`` has the questions.
"""

import html
import json
import re
import sys
from pathlib import Path
from typing import Any

import yaml
from docs.tools.site import SITE, TOOLS
from lunr import get_default_builder
from lunr.stemmer import stemmer
from lunr.trimmer import trimmer

PAGE = "guide/questions.html"
HITS = 3


def load() -> list[dict[str, str]]:
    """Return the questions, each with the anchor of its answer."""
    questions: list[dict[str, str]] = yaml.safe_load((TOOLS / "questions.yml").read_text(encoding="utf-8"))
    return questions


class Search:
    """The search of the site, over the entries of its index: pages and their sections, with `location`, `title` and `text`."""

    def __init__(self, entries: list[dict[str, Any]], separator: str) -> None:
        builder = get_default_builder()
        builder.b(0)
        builder.pipeline.remove(trimmer)
        for pipeline in (builder.pipeline, builder.search_pipeline):
            pipeline.remove(stemmer)
        builder.ref("location")
        builder.field("title", boost=1000)
        builder.field("text")
        self._separator = re.compile(separator)
        for entry in entries:
            plain = {key: self._words(html.unescape(re.sub(r"<[^>]+>", " ", entry[key]))) for key in ("title", "text")}
            builder.add(plain | {"location": entry["location"]}, {"boost": entry.get("boost", 1)})
        self._index = builder.build()

    def _words(self, text: str) -> str:
        return " ".join(word for word in self._separator.split(text) if word)

    def pages(self, asked: str) -> dict[str, list[str]]:
        """Return the sections that are found by the page they are on, both best first."""
        words = self._words(asked).lower().split()
        scored = []
        for hit in self._index.search(" ".join(f"{word}*" for word in re.findall(r"\w+", " ".join(words)))):
            matched = sum(any(term.startswith(word) for term in hit["match_data"].metadata) for word in words)
            scored.append((hit["score"] * (1 + (("#" not in hit["ref"]) + matched / len(words)) ** 2), hit["ref"]))
        found: dict[str, list[str]] = {}
        for _, location in sorted(scored, reverse=True):
            found.setdefault(location.partition("#")[0], []).append(location)
        return found


def main(site: Path = SITE) -> int:
    index = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))
    search = Search(index["docs"], index["config"]["separator"])
    missed = 0
    for question in load():
        found = search.pages(question["asked"])
        if f"{PAGE}#{question['answer']}" not in found.get(PAGE, [])[:HITS] or PAGE not in list(found)[:HITS]:
            missed += 1
            best = ", ".join(sections[0] for sections in list(found.values())[:HITS])
            print(f"not in the first {HITS} hits: {question['asked']}\n  found {best or 'nothing'}", file=sys.stderr)
            print(f"  {found.get(PAGE, [])[:HITS]}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
