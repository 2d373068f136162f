"""Inspecting the small text files: ``abort``, ``lock`` and others."""

from collections.abc import Iterator

from sprocketmq.storage.file_view import FileView
from sprocketmq.storage.inspect.items import PREVIEW_BYTES, Field, Item


def text_items(view: FileView, *, abort: bool) -> Iterator[Item]:
    """Yield the text of a file as one item; an ``abort`` file should hold a process id, or nothing."""
    data = view.read(0, PREVIEW_BYTES)
    problem = ""
    if abort and data and not (data.strip().isdigit() and len(data) < 20):
        problem = "it should hold a process id, or nothing"
    yield Item("text", 0, 0, view.size, (Field("text", 0, len(data), data.decode("utf-8", "replace")),), problem)
