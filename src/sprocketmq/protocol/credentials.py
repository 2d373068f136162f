"""The credentials of a client, and the signature of its requests (docs/internals/remoting.md#signature).

A request carries the user's name as AccessKey and, as Signature, HMAC-SHA1 over the values of all other extension fields, in the order of
their names and without separators, followed by the body. Code, flags and names of fields are not signed, and nothing expires: whoever reads
a request can send it again, so beyond the loopback interface signatures need TLS.
"""

import binascii
import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import NoReturn

import msgspec

from sprocketmq.errors import ConfigError

ACCESS_KEY = "AccessKey"
SECURITY_TOKEN = "SecurityToken"  # noqa: S105 - a name
SIGNATURE = "Signature"

Body = bytes | bytearray | memoryview | list[bytes | memoryview]

_BLOCK_BYTES = 64
_INNER = bytes(byte ^ 0x36 for byte in range(256))
_OUTER = bytes(byte ^ 0x5C for byte in range(256))

_encode_json = msgspec.json.encode
_decode_text_map = msgspec.json.Decoder(dict[str, str]).decode


class Secret:
    """A text that no ``repr``, log line, exception or pickle shows; ``reveal()`` returns it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the secret itself."""
        return self._text

    def __repr__(self) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        """Compare in a time that does not depend on where the texts differ."""
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._text.encode(), other._text.encode())

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a secret cannot be pickled or copied: pass the name of its file, and read it where it is used")


class SigningKey:
    """A secret, prepared for signing: the state of both hashes of HMAC-SHA1 after the key."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, secret: bytes) -> None:
        if len(secret) > _BLOCK_BYTES:
            secret = hashlib.sha1(secret, usedforsecurity=False).digest()
        block = secret.ljust(_BLOCK_BYTES, b"\0")
        self._inner = hashlib.sha1(block.translate(_INNER), usedforsecurity=False)
        self._outer = hashlib.sha1(block.translate(_OUTER), usedforsecurity=False)

    def signature(self, ext: Mapping[str, str], body: Body = b"") -> str:
        """Return the signature of a request with the fields ``ext``; a Signature among them is left out."""
        # Java writes an unpaired surrogate as a question mark too.
        values = "".join(_values_in_order(tuple(ext))(ext)).encode("utf-8", "replace")
        inner = self._inner.copy()
        inner.update(values)
        if type(body) is list:
            for piece in body:
                inner.update(piece)
        else:
            inner.update(body)  # type: ignore[arg-type]
        outer = self._outer.copy()
        outer.update(inner.digest())
        return binascii.b2a_base64(outer.digest(), newline=False).decode()


def signature(secret: bytes, ext: Mapping[str, str], body: Body = b"") -> str:
    """Return the signature of one request by ``secret``; ``SigningKey`` costs less for several."""
    return SigningKey(secret).signature(ext, body)


@lru_cache(maxsize=512)
def _values_in_order(names: tuple[str, ...]) -> Callable[[Mapping[str, str]], Iterable[str]]:
    """Return a function that takes the signed values from a map with these names; requests of one kind have the same names."""
    signed = [name for name in names if name != SIGNATURE]
    signed.sort(key=lambda name: name.encode("utf-16-be", "surrogatepass"))
    if not signed:
        return lambda ext: ()  # noqa: ARG005 - no field is signed
    # Of a single name an itemgetter returns the text, which is joined to itself.
    return itemgetter(*signed)


@dataclass(frozen=True, slots=True, init=False)
class Credentials:
    """The name of a user (``access_key``) and what proves it (``secret_key``, a text or a ``Secret``); no ``repr`` shows the secret.

    ``security_token`` is sent along as it is, for services that issue short-lived keys. Raises ConfigError for a text that is empty or has
    white space around it.
    """

    access_key: str
    secret_key: Secret
    security_token: Secret | None
    _key: SigningKey
    _fields: bytes

    def __init__(self, access_key: str, secret_key: "str | Secret", security_token: "str | Secret | None" = None) -> None:
        put = object.__setattr__
        put(self, "access_key", _checked("access_key", access_key))
        secret = _secret("secret_key", secret_key)
        put(self, "secret_key", secret)
        put(self, "security_token", None if security_token is None else _secret("security_token", security_token))
        put(self, "_key", SigningKey(secret.reveal().encode()))
        put(self, "_fields", _encode_json(self._identity())[1:-1])

    def __repr__(self) -> str:
        return f"Credentials({self.access_key!r}, ***)"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Credentials):
            return NotImplemented
        return self._identity() == other._identity() and self.secret_key == other.secret_key

    def __hash__(self) -> int:
        return hash((self.access_key, self.secret_key, self.security_token))

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("credentials cannot be pickled or copied: pass the name of their file, and read it where it is used")

    def sign(self, ext: Mapping[str, str], body: Body = b"") -> dict[str, str]:
        """Return the fields of a request with AccessKey, SecurityToken if there is one, and Signature added, in this order."""
        signed = dict(ext)
        signed.pop(SIGNATURE, None)
        signed |= self._identity()
        signed[SIGNATURE] = self._key.signature(signed, body)
        return signed

    def sign_json(self, ext: bytes, body: Body = b"") -> bytes:
        """Do the same to fields that are JSON text already, without names of their own among the three."""
        fields = _decode_text_map(ext)
        end = ext[:-1] + b"," if fields else b"{"
        fields[ACCESS_KEY] = self.access_key
        if self.security_token is not None:
            fields[SECURITY_TOKEN] = self.security_token.reveal()
        return b'%b%b,"Signature":"%b"}' % (end, self._fields, self._key.signature(fields, body).encode())

    def _identity(self) -> dict[str, str]:
        token = self.security_token
        return {ACCESS_KEY: self.access_key} if token is None else {ACCESS_KEY: self.access_key, SECURITY_TOKEN: token.reveal()}


# Credentials that may change: fetched once, and again when a server has refused the last ones.
CredentialsSource = Callable[[], Credentials]


def _checked(name: str, text: object) -> str:
    if not isinstance(text, str) or not text:
        raise ConfigError(f"{name} must be a text that is not empty")
    if text != text.strip() or not text.isprintable():
        raise ConfigError(f"{name} has white space or a control character in it, perhaps the end of a line: remove it")
    return text


def _secret(name: str, text: object) -> Secret:
    return Secret(_checked(name, text.reveal() if isinstance(text, Secret) else text))
