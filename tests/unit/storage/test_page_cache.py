"""What the system says about the page cache, with its answers made up."""

import mmap
import runpy
import sys
from pathlib import Path

import pytest

from sprocketmq.storage import fs

PAGE = mmap.PAGESIZE


@pytest.fixture
def view(tmp_path: Path) -> memoryview:
    file = tmp_path / "file"
    file.write_bytes(bytes(8 * PAGE))
    return fs.REAL_FS.open(str(file), read_only=True).map(8 * PAGE)


def answer(monkeypatch: pytest.MonkeyPatch, pages: str, result: int = 0) -> None:
    """Let the system say which of the eight pages are in the cache; bits other than the lowest may be set."""

    def mincore(view: memoryview, begin: int, length: int, vector: bytearray) -> int:
        assert begin % PAGE == 0
        assert len(vector) == -(-length // PAGE)
        first = begin // PAGE
        vector[:] = bytes(0b1101 if page == "x" else 0b1100 for page in pages[first : first + len(vector)])
        return result

    monkeypatch.setattr(fs, "_mincore", lambda: mincore)


def test_missing_parts_are_whole_pages(view: memoryview, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, "x.xx..x.")
    assert fs.missing_parts(view, 0, 8 * PAGE, 8 * PAGE) == [(PAGE, 2 * PAGE), (4 * PAGE, 6 * PAGE), (7 * PAGE, 8 * PAGE)]
    assert fs.missing_parts(view, PAGE + 7, 5 * PAGE - 7, 8 * PAGE) == [(PAGE, 2 * PAGE), (4 * PAGE, 5 * PAGE - 7)]
    assert not fs.resident(view, 0, 8 * PAGE)
    assert fs.resident(view, 2 * PAGE, 4 * PAGE)


def test_many_missing_parts_are_not_listed(view: memoryview, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, "x.xx..x.")
    assert fs.missing_parts(view, 0, 8 * PAGE, 4 * PAGE) == [(PAGE, 2 * PAGE), (4 * PAGE, 6 * PAGE), (7 * PAGE, 8 * PAGE)]
    assert fs.missing_parts(view, 0, 8 * PAGE, 4 * PAGE - 1) is None


def test_nothing_is_missing_where_the_system_cannot_tell(view: memoryview, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, "........", result=-1)
    assert fs.missing_parts(view, 0, 8 * PAGE, 8 * PAGE) == []
    assert fs.resident(view, 0, 8 * PAGE)
    answer(monkeypatch, "........")
    assert fs.missing_parts(view, PAGE, PAGE, PAGE) == []
    assert fs.missing_parts(memoryview(bytes(PAGE)), 0, PAGE, PAGE) == []
    monkeypatch.setattr(fs, "_mincore", lambda: None)
    assert fs.missing_parts(view, 0, 8 * PAGE, 8 * PAGE) == []


def test_python_without_ctypes_cannot_tell_either(view: memoryview, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ctypes", None)
    fresh = runpy.run_path(fs.__file__)  # which has not found the function yet
    assert fresh["missing_parts"](view, 0, 8 * PAGE, 8 * PAGE) == []
    assert fresh["resident"](view, 0, 8 * PAGE)
    assert not fresh["REAL_FS"].exchange(str(tmp_path / "one"), str(tmp_path / "other"))
