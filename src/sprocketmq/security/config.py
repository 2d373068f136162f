"""The settings of access control, the same for brokers and nameservers."""

import hashlib
import hmac
from dataclasses import dataclass
from pathlib import Path

from sprocketmq.errors import ConfigError
from sprocketmq.protocol.credentials import Credentials

_HA_LABEL = b"sprocketmq replication secret 1"


@dataclass(frozen=True, kw_only=True)
class SecurityConfig:
    """Who may use a broker or nameserver. Raises ConfigError for settings that would protect nothing.

    With ``authentication_enabled`` every request is to be signed by a user of ``users_file``; with ``authorization_enabled`` the policies
    in that file say what a Normal user may do. ``inner_credentials`` sign what the server itself sends to nameservers and brokers; the
    user that they name is a Super user wherever the same ones are set.
    """

    authentication_enabled: bool = True
    authorization_enabled: bool = True
    users_file: str | Path | None = None
    inner_credentials: Credentials | None = None

    def __post_init__(self) -> None:
        if self.authorization_enabled and not self.authentication_enabled:
            raise ConfigError(
                "authorization_enabled without authentication_enabled would trust the user name that a request states:"
                " set authentication_enabled as well"
            )
        if self.authentication_enabled and not self.users_file:
            raise ConfigError(
                "authentication_enabled needs a file of users (users_file): `sprocketmq secure init DIR` makes DIR/users.json"
            )

    @property
    def replication_secret(self) -> str | None:
        """The secret of the replication port where none is set: derived from the inner credentials, None without them."""
        if self.inner_credentials is None:
            return None
        key = self.inner_credentials.secret_key.reveal().encode()
        label = _HA_LABEL + self.inner_credentials.access_key.encode()
        return hmac.new(key, label, hashlib.sha256).hexdigest()
