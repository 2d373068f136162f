"""Inspecting the JSON tables in ``config``."""

from collections.abc import Iterator

from sprocketmq.errors import RemoteProtocolError
from sprocketmq.protocol.jsondialect import loads
from sprocketmq.storage.file_view import FileView
from sprocketmq.storage.inspect.items import Field, Item

# Configuration files are small: this is enough for about 200,000 topics.
MAX_JSON_BYTES = 64 << 20


def json_items(view: FileView) -> Iterator[Item]:
    """Yield the value in the file as one item."""
    data = view.read_all(MAX_JSON_BYTES)
    if data is None:
        yield Item("damaged", 0, 0, view.size, (), f"{view.size} bytes are more than a configuration file can have ({MAX_JSON_BYTES})")
        return
    try:
        value = loads(data)
    except RemoteProtocolError as e:
        yield Item("damaged", 0, 0, view.size, (), str(e))
        return
    yield Item("json", 0, 0, view.size, (Field("value", 0, view.size, value),))
