"""Authentication of calls: the signature in the metadata of a call.

``authorization: MQv2-HMAC-SHA1 Credential=KEY[/...], SignedHeaders=x-mq-date-time, Signature=HEX``. The signature is HMAC-SHA1 over the
value of ``x-mq-date-time``; nothing else is signed and nothing expires, so that beyond the loopback interface it needs TLS.
"""

import hashlib
import hmac
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from sprocketmq.client.credentials import read_secret_file
from sprocketmq.errors import ConfigError
from sprocketmq.protocol.credentials import Credentials
from sprocketmq.proxy.codes import Code, Refused

_AUTHORIZATION = re.compile(r"MQv2-HMAC-SHA1 Credential=([^,/]*)[^,]*, ?SignedHeaders=x-mq-date-time, ?Signature=([0-9A-Fa-f]*)")
_NOBODY = b"no user has this secret"


class _UserEntry(msgspec.Struct, forbid_unknown_fields=True):
    access_key: str
    secret_key: str


class Users:
    """The users that may call, with their credentials for the cluster. Without any, calls need no signature."""

    def __init__(self, users: Mapping[str, Credentials]) -> None:
        self._users = users

    def __bool__(self) -> bool:
        return bool(self._users)

    def credentials(self, user: str) -> Credentials:
        """Return the credentials of a user that ``authenticate`` returned."""
        return self._users[user]

    def authenticate(self, metadata: Mapping[str, str]) -> str:
        """Return the user of a call, empty without users. Raises Refused."""
        if not self._users:
            return ""
        match = _AUTHORIZATION.fullmatch(metadata.get("authorization", ""))
        if match is None:
            raise Refused(Code.UNAUTHORIZED, "this endpoint needs a user: give the client its access key and secret key")
        name, given = match.groups()
        credentials = self._users.get(name)
        secret = _NOBODY if credentials is None else credentials.secret_key.reveal().encode()
        expected = hmac.new(secret, metadata.get("x-mq-date-time", "").encode(), hashlib.sha1).hexdigest()
        if not hmac.compare_digest(expected, given.lower()) or credentials is None:
            raise Refused(Code.UNAUTHORIZED, f"the signature of user {name!r} is wrong: compare the keys with the endpoint's")
        return name


def read_users(path: Path) -> Users:
    """Return the users in a file: a JSON list of objects with ``access_key`` and ``secret_key``.

    Raises ConfigError naming the file and what is wrong, SecretFileExposed when group or others may read it.
    """
    text = read_secret_file(path)
    try:
        entries = msgspec.json.decode(text, type=list[_UserEntry])
        users = {entry.access_key: Credentials(entry.access_key, entry.secret_key) for entry in entries}
    except (msgspec.DecodeError, ConfigError) as e:
        raise ConfigError(f"{path}: {e}; it must be a list of objects with access_key and secret_key") from None
    if not users:
        raise ConfigError(f"{path}: there is no user in it")
    return Users(users)
