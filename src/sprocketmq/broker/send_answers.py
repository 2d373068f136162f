"""The fields of an answer to a send, as ready JSON text."""

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct

import msgspec


class SendAnswers:
    """Makes the fields of answers from templates: a broker with ``region`` whose address, as in message ids, is ``store_host``.

    ``single`` is the template for one message, which callers fill: queue id, ``json_text`` of the unique key, log offset, queue offset.
    """

    def __init__(self, region: str, store_host: bytes) -> None:
        self._host_hex = store_host.hex().upper()
        msg_id = self._host_hex.encode() + b"%016X"
        fields = b'"TRACE_ON":"true","MSG_REGION":"' + region.replace("%", "%%").encode() + b'","queueOffset":"%d"}'
        self.single = b'{"queueId":"%d","transactionId":"%b","msgId":"' + msg_id + b'",' + fields
        self._several = b'{"queueId":"%d",%b"msgId":"%b",' + fields
        self._inner = b'{"queueId":"%d","batchUniqId":"%b","transactionId":"%b","msgId":"' + msg_id + b'",' + fields

    def timed(self, queue_id: int, uniq: str, log_offset: int, queue_offset: int, handle: str) -> str:
        """Return the fields for a message that can be recalled."""
        fields = self.single % (queue_id, json_text(uniq), log_offset, queue_offset)
        return f'{fields[:-1].decode()},"recallHandle":"{handle}"}}'

    def inner(self, queue_id: int, uniq: str, log_offset: int, queue_offset: int) -> bytes:
        """Return the fields for a batch stored as one record."""
        text = json_text(uniq)
        return self._inner % (queue_id, text, text, log_offset, queue_offset)

    def several(self, queue_id: int, uniq: str | None, log_offsets: Sequence[int], queue_offset: int) -> bytes:
        """Return the fields for a batch stored as single messages."""
        # The ids differ in their last 16 digits only.
        offsets = _offsets_of(len(log_offsets)).pack(*log_offsets).hex(",", 8).upper()
        ids = self._host_hex + offsets.replace(",", "," + self._host_hex)
        transaction = b'"transactionId":"%b",' % json_text(uniq) if uniq else b""
        return self._several % (queue_id, transaction, ids.encode(), queue_offset)


@lru_cache(maxsize=256)
def _offsets_of(count: int) -> Struct:
    """Return the layout of ``count`` log offsets in a row."""
    return Struct(f">{count}q")


def json_text(value: str) -> bytes:
    """Return a text escaped for use between the quotes of a JSON string."""
    # Message ids are hex, but a client may send any text.
    return value.encode() if value.isalnum() else msgspec.json.encode(value)[1:-1]
