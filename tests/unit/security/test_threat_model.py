"""The threat model names modules and tests that are there."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "internals" / "security.md").read_text(encoding="utf-8")
REPLAYS = "fuzz/test_replayed_requests.py"


@cache
def functions(path: Path) -> set[str]:
    """Return the names of a module's functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def cited_tests() -> list[tuple[str, str]]:
    whole = re.findall(r"`([\w/]+\.py)::(test_\w+)`", PAGE)
    return whole + [(REPLAYS, name) for name in re.findall(r"`(test_\w+)`", PAGE)]


def cited_modules() -> list[str]:
    return [path for path in re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", PAGE) if path != "tests/"]


@pytest.mark.parametrize(("file", "test"), cited_tests())
def test_a_cited_test_is_there(file: str, test: str) -> None:
    assert test in functions(ROOT / "tests" / file)


@pytest.mark.parametrize("path", cited_modules())
def test_a_cited_module_is_there(path: str) -> None:
    assert (ROOT / "src" / "sprocketmq" / path).exists() or (ROOT / "tests" / path).exists()


def test_each_threat_has_a_test() -> None:
    attacks = PAGE.partition("## Who attacks")[2].partition("## What happened")[0]
    rows = [line for line in attacks.splitlines() if line.startswith("| ") and not line.startswith(("| tries", "| | as far"))]
    assert len(rows) > 20
    assert [row for row in rows if "test_" not in row] == []
