"""One remoting command: header fields in JSON or binary, and a body (docs/internals/remoting.md#command).

``layout.py`` draws the frame and the binary header.
"""

import struct
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from sprocketmq.errors import LocalProtocolError, RemoteProtocolError
from sprocketmq.protocol.codes import FLAG_ONEWAY, FLAG_RESPONSE, PROTOCOL_VERSION, LanguageCode, SerializeType
from sprocketmq.protocol.layout import BINARY_HEADER, FRAME_HEAD, FRAME_LAYOUT, INT16, INT32
from sprocketmq.protocol.ranges import Int32

MAX_FRAME_LENGTH = 16_777_216
MAX_HEADER_LENGTH = 0xFFFFFF

_WORD = FRAME_LAYOUT.part("type_and_header_length", start="type_and_header_length")
_pack_frame_head = FRAME_HEAD.pack
_pack_int16 = INT16.pack
_pack_int32 = INT32.pack
_pack_binary_header = BINARY_HEADER.pack
_unpack_binary_header = BINARY_HEADER.unpack_from
_unpack_int32 = INT32.unpack_from

_T = TypeVar("_T")

_LANGUAGE_NAMES = {code.value: code.name.encode() for code in LanguageCode}
_LANGUAGE_CODES: dict[str | None, int] = {None: 0, "": 0, **{code.name: code.value for code in LanguageCode}}
# Plain integers where they are compared or looked up on every frame: an enum's member hashes and compares many times slower.
_PYTHON = int(LanguageCode.PYTHON)
_OTHER = int(LanguageCode.OTHER)
_JSON = int(SerializeType.JSON)
_BINARY = int(SerializeType.ROCKETMQ)


class _JsonHead(msgspec.Struct, gc=False):
    code: Int32
    opaque: Int32 = 0
    flag: Int32 = 0
    version: Int32 = 0
    language: str | int | None = None
    remark: str | None = None
    extFields: msgspec.Raw = msgspec.Raw(b"")  # noqa: N815 - the wire's name


_decode_head = msgspec.json.Decoder(_JsonHead, strict=False).decode
_decode_text_map = msgspec.json.Decoder(dict[str, str]).decode
_decode_any_map = msgspec.json.Decoder(dict[str, Any] | None).decode
_encode_json = msgspec.json.encode
_typed_decoders: dict[type, Any] = {}
_UNREADABLE = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)


class Command:
    """One decoded request or response.

    ``body`` is a view into the receive buffer on servers (valid during the handler call) and ``bytes`` on clients.
    """

    __slots__ = ("_ext", "_raw_ext", "body", "code", "flag", "language", "opaque", "remark", "serialize", "version")

    def __init__(
        self,
        code: int,
        *,
        opaque: int = 0,
        flag: int = 0,
        version: int = PROTOCOL_VERSION,
        language: int = _PYTHON,
        remark: str | None = None,
        ext: dict[str, str] | None = None,
        body: bytes | memoryview = b"",
        serialize: int = _JSON,
    ) -> None:
        self.code: int = code
        self.opaque: int = opaque
        self.flag: int = flag
        self.version: int = version
        self.language: int = language
        self.remark: str | None = remark
        self.serialize: int = serialize
        self.body: bytes | memoryview = body
        self._ext: dict[str, str] | None = ext
        self._raw_ext: bytes | msgspec.Raw = b""

    @property
    def ext(self) -> dict[str, str]:
        """The extension fields as text; decoded once. Raises RemoteProtocolError when they are not a map of scalars."""
        if self._ext is None:
            self._ext = _decode_ext(self._raw_ext) if self._raw_ext else {}
        return self._ext

    def header(self, kind: type[_T]) -> _T:
        """Return the extension fields as a ``kind`` (a Struct of protocol/headers.py).

        Numbers and booleans are read from their text. Raises RemoteProtocolError naming the missing or malformed field.
        """
        try:
            if self._ext is None and self._raw_ext:
                decoder = _typed_decoders.get(kind)
                if decoder is None:
                    decoder = _typed_decoders[kind] = msgspec.json.Decoder(kind, strict=False).decode
                try:
                    return decoder(self._raw_ext)
                except msgspec.ValidationError:
                    # A field that came as a JSON number where we want text is legal; the text map below accepts it.
                    pass
            return msgspec.convert(self.ext, kind, strict=False)
        except _UNREADABLE as e:
            raise RemoteProtocolError(f"header of request {self.code} does not fit: {e}") from None

    @property
    def is_response(self) -> bool:
        return bool(self.flag & FLAG_RESPONSE)

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & FLAG_ONEWAY)

    def __repr__(self) -> str:
        kind = "response" if self.flag & FLAG_RESPONSE else "oneway" if self.flag & FLAG_ONEWAY else "request"
        return f"Command({kind} code={self.code} opaque={self.opaque} remark={self.remark!r} body={len(self.body)} bytes)"


_new_command = Command.__new__


def to_ext(header: msgspec.Struct) -> dict[str, str]:
    """Return a header Struct as the text map of the wire; fields that are None are left out."""
    ext: dict[str, str] = {}
    for name, value in msgspec.to_builtins(header).items():
        if value is None:
            continue
        if value is True:
            ext[name] = "true"
        elif value is False:
            ext[name] = "false"
        else:
            ext[name] = value if type(value) is str else str(value)
    return ext


def encode_head(
    code: int,
    *,
    opaque: int,
    flag: int = 0,
    ext: Mapping[str, str] | bytes | None = None,
    remark: str | None = None,
    body_length: int = 0,
    language: int = _PYTHON,
    version: int = PROTOCOL_VERSION,
    serialize: int = _JSON,
) -> bytes:
    """Return a frame up to its body: length, serialise type, header length, header.

    ``ext`` as bytes is a ready JSON object (hot paths build it from a template); it cannot go into a binary header. Raises
    LocalProtocolError when the frame would pass 16 MiB, a binary header cannot carry a number, or a field is not valid Unicode.
    """
    if remark is not None and not remark.isascii():
        remark = remark.encode("utf-8", "replace").decode()  # an exception's text may contain undecodable bytes of a path
    try:
        if serialize == _JSON:
            if ext is None:
                fields = b""
            elif type(ext) is bytes:
                fields = b'"extFields":' + ext + b","
            else:
                fields = b'"extFields":' + _encode_json(ext) + b","
            note = b"" if remark is None else b'"remark":' + _encode_json(remark) + b","
            header = b'{"code":%d,%b"flag":%d,"language":"%b","opaque":%d,%b"serializeTypeCurrentRPC":"JSON","version":%d}' % (
                code,
                fields,
                flag,
                _LANGUAGE_NAMES.get(language, b"OTHER"),
                opaque,
                note,
                version,
            )
            kind = 0
        else:
            header = _encode_binary(code, opaque, flag, ext, remark, language, version)
            kind = 0x0100_0000
    except UnicodeEncodeError as e:
        raise LocalProtocolError(f"header text cannot be written as UTF-8: {e.reason}") from None
    size = len(header)
    length = 4 + size + body_length
    if length > MAX_FRAME_LENGTH or size > MAX_HEADER_LENGTH:
        raise LocalProtocolError(f"a frame of {length} bytes is over the protocol's limit of {MAX_FRAME_LENGTH}: send less at once")
    return _pack_frame_head(length, kind | size) + header


_SUCCESS = b'{"code":0,"extFields":%%b,"flag":%d,"language":"PYTHON","opaque":%%d,"serializeTypeCurrentRPC":"JSON","version":%d}' % (
    FLAG_RESPONSE,
    PROTOCOL_VERSION,
)


def encode_success(opaque: int, ext: bytes) -> bytes:
    """Return what ``encode_head`` does for an answer with code 0 and no body, in half the time. ``ext`` is a short JSON object."""
    header = _SUCCESS % (ext, opaque)
    size = len(header)
    return _pack_frame_head(4 + size, size) + header


def encode_command(command: Command) -> bytes:
    """Return ``command`` as one whole frame, body included."""
    head = encode_head(
        command.code,
        opaque=command.opaque,
        flag=command.flag,
        ext=command.ext if command._ext is not None or command._raw_ext else None,  # noqa: SLF001 - this module's own class
        remark=command.remark,
        body_length=len(command.body),
        language=command.language,
        version=command.version,
        serialize=command.serialize,
    )
    return head + command.body


def decode_command(frame: bytes | bytearray | memoryview) -> Command:
    """Decode what follows a frame's length field: serialise type, header, body.

    The header is copied, the body is a view into ``frame``. Raises RemoteProtocolError for an unknown serialisation, a header
    longer than its frame, or a header that does not parse.
    """
    view = memoryview(frame)
    if len(view) < 4:
        raise RemoteProtocolError(f"a frame of {len(view)} bytes has no room for its header length")
    (word,) = _WORD.unpack_from(view)
    end = 4 + (word & 0xFFFFFF)
    if end > len(view):
        raise RemoteProtocolError(f"header length {end - 4} is longer than its frame of {len(view)} bytes")
    return decode_parts(word >> 24, bytes(view[4:end]), view[end:])


def decode_parts(kind: int, header: bytes | bytearray, body: bytes | memoryview) -> Command:
    """Decode a command from its serialise type, its header and its body.

    The command keeps both; the header must not change any more. Raises RemoteProtocolError for an unknown serialisation or a header
    that does not parse.
    """
    if kind == _JSON:
        command = _decode_json(header)
    elif kind == _BINARY:
        command = _decode_binary(header)
    else:
        raise RemoteProtocolError(f"unknown header serialisation {kind}")
    command.body = body
    return command


def _decode_json(header: bytes | bytearray) -> Command:
    try:
        head = _decode_head(header)
    except _UNREADABLE as e:
        raise RemoteProtocolError(f"JSON header does not parse: {e}") from None
    command = _new_command(Command)
    command.code = head.code
    command.opaque = head.opaque
    command.flag = head.flag
    command.version = head.version
    language = head.language
    command.language = language if type(language) is int else _LANGUAGE_CODES.get(language, _OTHER)  # type: ignore[arg-type]
    command.remark = head.remark
    command.serialize = 0
    command._ext = None  # noqa: SLF001 - this module's own class
    command._raw_ext = head.extFields  # noqa: SLF001 - this module's own class
    return command


def _decode_ext(raw: bytes | msgspec.Raw) -> dict[str, str]:
    try:
        return _decode_text_map(raw)
    except msgspec.ValidationError:
        pass
    except _UNREADABLE as e:
        raise RemoteProtocolError(f"extension fields do not parse: {e}") from None
    try:
        loose = _decode_any_map(raw)
    except _UNREADABLE as e:
        raise RemoteProtocolError(f"extension fields are not a JSON object: {e}") from None
    ext: dict[str, str] = {}
    for name, value in (loose or {}).items():
        if value is None:
            continue
        if isinstance(value, str):
            ext[name] = value
        elif isinstance(value, bool):
            ext[name] = "true" if value else "false"
        elif isinstance(value, int | float):
            ext[name] = str(value)
        else:
            raise RemoteProtocolError(f"extension field {name!r} is a {type(value).__name__}, not a scalar")
    return ext


def _encode_binary(
    code: int, opaque: int, flag: int, ext: Mapping[str, str] | bytes | None, remark: str | None, language: int, version: int
) -> bytes:
    if isinstance(ext, bytes):
        raise LocalProtocolError("ready-made JSON fields cannot go into a binary header")
    if not -0x8000 <= code <= 0x7FFF:
        raise LocalProtocolError(f"code {code} does not fit a binary header's 16 bits: use JSON headers for it")
    note = remark.encode() if remark else b""
    parts: list[bytes] = []
    for name, value in (ext or {}).items():
        key, text = name.encode(), value.encode()
        if len(key) > 0x7FFF:
            raise LocalProtocolError(f"extension field name of {len(key)} bytes is over the limit of 32767")
        parts += (_pack_int16(len(key)), key, _pack_int32(len(text)), text)
    fields = b"".join(parts)
    try:
        return _pack_binary_header(code, language, version, opaque, flag, len(note)) + note + _pack_int32(len(fields)) + fields
    except struct.error as e:
        raise LocalProtocolError(f"a number does not fit a binary header: {e}") from None


def _decode_binary(header: bytes | bytearray) -> Command:
    size = len(header)
    if size < 21:
        raise RemoteProtocolError(f"binary header of {size} bytes is shorter than its fixed 21 bytes")
    code, language, version, opaque, flag, note_length = _unpack_binary_header(header)
    pos = 17 + note_length
    if note_length < 0 or pos + 4 > size:
        raise RemoteProtocolError(f"remark length {note_length} does not fit a binary header of {size} bytes")
    (ext_length,) = _unpack_int32(header, pos)
    ext_at = pos + 4
    if ext_length < 0 or ext_at + ext_length != size:
        raise RemoteProtocolError(f"extension length {ext_length} does not fit a binary header of {size} bytes")
    ext: dict[str, str] = {}
    # Slices of one text are cheaper than decoding each piece; only pieces that are not ASCII are decoded on their own.
    text = header.decode("latin-1")
    short, integer = INT16.unpack_from, INT32.unpack_from
    try:
        remark = header[17:pos].decode() if note_length else None
        pos = ext_at
        while pos < size:
            if size - pos < 6:
                raise RemoteProtocolError("extension field is cut short")
            key_at = pos + 2
            key_end = key_at + short(header, pos)[0]
            pos = key_end + 4
            if key_end < key_at or pos > size:
                raise RemoteProtocolError(f"extension name length {key_end - key_at} runs past the header")
            end = pos + integer(header, key_end)[0]
            if end < pos or end > size:
                raise RemoteProtocolError(f"extension value length {end - pos} runs past the header")
            if key_end > key_at and end > pos:  # an empty name or value reads as absent
                key, value = text[key_at:key_end], text[pos:end]
                ext[key if key.isascii() else header[key_at:key_end].decode()] = value if value.isascii() else header[pos:end].decode()
            pos = end
    except UnicodeDecodeError as e:
        raise RemoteProtocolError(f"binary header is not UTF-8: {e.reason}") from None
    return Command(code, opaque=opaque, flag=flag, version=version, language=language, remark=remark, ext=ext, serialize=1)
