"""The notebook with a streaming query runs from its first cell to its last, in a kernel and a JVM of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.test_notebooks import executed

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def test_a_streaming_query_is_watched(tmp_path: Path) -> None:
    shown = executed("a_streaming_query", tmp_path)
    assert "rows/s" in shown
    assert "paid" in shown
