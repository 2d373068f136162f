"""docs/guide/logs.md lists every event that the code logs, with its level and fields, and no other."""

import ast
import re
from pathlib import Path

import sprocketmq
from sprocketmq.cli.logs import JSON_KEYS

ROOT = Path(sprocketmq.__file__).parent
TESTS = Path(__file__).parent
GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "logs.md"
ROW = re.compile(r"^\| `(\w+)` \| ([\w, ]+) \|([^|]*)\|", re.MULTILINE)
SENT_ON = {"net/peerlog.py"}


def calls(path: Path) -> list[tuple[str, str, set[str]]]:
    """The events of a file: name, level and fields. ``event(log, LEVEL, name, ...)``, and ``event(key, name, ...)`` of a PeerLog."""
    found: list[tuple[str, str, set[str]]] = []
    text = path.read_text()
    if "from sprocketmq.events import" not in text and "PeerLog" not in text and "peer_log" not in text:
        return found
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name) and node.func.id == "event":
            level, name = node.args[1:3]
        elif isinstance(node.func, ast.Attribute) and node.func.attr == "event" and len(node.args) == 2:
            level, name = None, node.args[1]
        else:
            continue
        if not isinstance(name, ast.Constant):
            assert str(path.relative_to(ROOT)) in SENT_ON, f"{path}:{node.lineno}: the name of an event is written where it is logged"
            continue
        said = ast.unparse(level).removeprefix("logging.").lower() if level is not None else "limited"
        found.append((name.value, said, {word.arg for word in node.keywords} - {"exc_info", "trace", None}))
    return found


def test_the_guide_lists_every_event_with_its_fields() -> None:
    code: dict[str, set[str]] = {"log_lines_dropped": {"count", "reason"}}
    for path in sorted(ROOT.rglob("*.py")):
        for name, _, fields in calls(path):
            code.setdefault(name, set()).update(fields)
    listed = {name: set(re.findall(r"`(\w+)`", fields)) for name, _, fields in ROW.findall(GUIDE.read_text())}
    assert listed == code


def texts(path: Path) -> set[str]:
    """The string literals of a file, each f-string in its parts."""
    return {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_every_event_is_made_to_happen_by_a_test() -> None:
    said = "\n".join(text for path in sorted(TESTS.rglob("test_*.py")) if path != Path(__file__) for text in texts(path))
    listed = [name for name, _, _ in ROW.findall(GUIDE.read_text())]
    missing = [name for name in listed if not re.search(rf"(?:^|\s){name}(?:\s\w+=|$)", said, re.MULTILINE)]
    assert missing == [], "write a test in which it happens, and assert its line"


def test_fields_have_names_that_a_json_line_does_not_use() -> None:
    for path in sorted(ROOT.rglob("*.py")):
        for name, _, fields in calls(path):
            assert not fields & {*JSON_KEYS}, name
            assert re.fullmatch(r"[a-z][a-z0-9_]+", name), name
