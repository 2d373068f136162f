"""Administration of users and policies (3001 to 3010), of our brokers and of Apache's.

Each broker has its own users and policies, slaves too, unless several share a file: methods ask the one at ``address``.
"""

from sprocketmq.client.admin.configuration import ConfigurationAdmin
from sprocketmq.errors import ConfigError
from sprocketmq.protocol.bodies import AclInfo, UserInfo
from sprocketmq.protocol.codes import RequestCode
from sprocketmq.protocol.command import Command, to_ext
from sprocketmq.protocol.credentials import Secret
from sprocketmq.protocol.headers import AclFilter, AclRequest, UserFilter, UserRequest


class SecurityAdmin(ConfigurationAdmin):
    """Users and policies of brokers with access control; a user who may change them has Get and Update on the cluster."""

    # --- users ---

    async def create_user(
        self,
        address: str,
        username: str,
        secret: Secret | str,
        *,
        user_type: str = "Normal",
    ) -> None:
        """Create a user whose requests ``secret`` signs.

        ``user_type`` is Normal, for whom policies hold, or Super, which only a Super user may create.
        """
        info = UserInfo(username, _text(secret), user_type)
        await self._done(address, RequestCode.CREATE_USER, to_ext(UserRequest(username)), info.encode())

    async def update_user(
        self,
        address: str,
        username: str,
        *,
        secret: Secret | str | None = None,
        user_type: str | None = None,
        status: str | None = None,
        keep_previous: bool = False,
    ) -> None:
        """Change what is given; ``status`` is enable or disable.

        With ``keep_previous`` the old secret stays valid beside the new one until the next change, so that clients can change over. Brokers
        of Apache's replace it at once.
        """
        if secret is None and user_type is None and status is None:
            raise ConfigError(f"nothing to change of the user {username}: give secret, user_type or status")
        info = UserInfo(None, None if secret is None else _text(secret), user_type, status, keep_previous or None)
        await self._done(address, RequestCode.UPDATE_USER, to_ext(UserRequest(username)), info.encode())

    async def delete_user(self, address: str, username: str) -> None:
        """Delete a user with its policies. Harmless if unknown."""
        await self._done(address, RequestCode.DELETE_USER, to_ext(UserRequest(username)))

    async def user(self, address: str, username: str) -> UserInfo | None:
        """Return a user, None when there is none of that name. The password is left out, also of Apache's answers."""
        answer = await self._done(address, RequestCode.GET_USER, to_ext(UserRequest(username)))
        return _without_password(UserInfo.decode(answer.body)) if answer.body else None

    async def users(self, address: str, part: str = "") -> list[UserInfo]:
        """Return the users whose names contain ``part``, without passwords."""
        answer = await self._done(address, RequestCode.LIST_USERS, to_ext(UserFilter(part or None)))
        return [_without_password(info) for info in UserInfo.decode_array(answer.body)]

    # --- policies ---

    async def put_acl(self, address: str, acl: AclInfo) -> None:
        """Add the entries of ``acl`` to the policies of its subject (``User:name``); one for the same resource is replaced."""
        if not isinstance(acl, AclInfo):
            raise ConfigError(f"policies are given as AclInfo, not {acl!r}")
        await self._done(address, RequestCode.UPDATE_ACL, to_ext(AclRequest(acl.subject or "")), acl.encode())

    async def delete_acl(self, address: str, subject: str, resource: str | None = None, *, policy_type: str | None = None) -> None:
        """Delete the policies of ``subject``; with ``resource`` only the entry for it."""
        await self._done(address, RequestCode.DELETE_ACL, to_ext(AclRequest(subject, policy_type, resource)))

    async def acl(self, address: str, subject: str) -> AclInfo | None:
        """Return the policies of ``subject`` (``User:name``), None when there are none."""
        answer = await self._done(address, RequestCode.GET_ACL, to_ext(AclRequest(subject)))
        return AclInfo.decode(answer.body) if answer.body else None

    async def acls(self, address: str, *, subject: str = "", resource: str = "") -> list[AclInfo]:
        """Return the policies whose subjects and resources contain these texts."""
        answer = await self._done(address, RequestCode.LIST_ACLS, to_ext(AclFilter(subject or None, resource or None)))
        return AclInfo.decode_array(answer.body)

    async def _done(self, address: str, code: RequestCode, ext: dict[str, str], body: bytes = b"") -> Command:
        return self._expect_success(await self._ask(address, code, ext, body), address)


def _text(secret: Secret | str) -> str:
    return secret.reveal() if isinstance(secret, Secret) else secret


def _without_password(info: UserInfo) -> UserInfo:
    info.password = None
    return info
