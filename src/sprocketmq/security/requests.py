"""The requests that show and change users and policies (3001 to 3010), as the reference's tools send them.

The texts and codes of refusals are the reference's; secrets are never in an answer. The guard has admitted a request before it comes here:
who made it is ``conn.user``.
"""

import logging
from collections.abc import Callable, Iterable

from sprocketmq.errors import ConfigError, ProtocolError
from sprocketmq.events import event
from sprocketmq.net.server import ServerConnection
from sprocketmq.net.tasks import Background
from sprocketmq.protocol.bodies import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.credentials import Secret
from sprocketmq.protocol.headers import AclFilter, AclRequest, UserFilter, UserRequest
from sprocketmq.security.guard import SecurityGuard
from sprocketmq.security.policies import Decision, Policy, PolicyEntry, PolicyType, policy_entry
from sprocketmq.security.tables import NO_SUBJECT, SUBJECT_PREFIX, AccessTables, ChangeRefused, subject_name
from sprocketmq.security.users import User, UserStatus, UserType, member_named

audit = logging.getLogger("sprocketmq.security")

NO_USERS = "this broker has no users and policies: start it with authentication_enabled and users_file"
CODES = range(RequestCode.CREATE_USER, RequestCode.LIST_ACLS + 1)
ONLY_SUPER_CREATES = "The super user can only be create by super user"
ONLY_SUPER_UPDATES = "The super user can only be update by super user"
MAX_LOGGED_ENTRIES = 10

Handler = Callable[[ServerConnection, Command], None]
Change = Callable[[AccessTables], AccessTables]


def handlers_without_users() -> dict[int, Handler]:
    """Return the handlers of a server without access control, which refuse."""

    def refuse(conn: ServerConnection, command: Command) -> None:
        conn.respond(command, ResponseCode.SYSTEM_ERROR, remark=NO_USERS)

    return dict.fromkeys(CODES, refuse)


class SecurityRequests:
    """Answers them for one server. Changes are written by tasks of ``background`` and answered when they hold, in the file and here."""

    def __init__(self, guard: SecurityGuard, background: Background) -> None:
        self._guard = guard
        self._background = background

    def handlers(self) -> dict[int, Handler]:
        code = RequestCode
        return {
            code.CREATE_USER: self._refusing(self.create_user),
            code.UPDATE_USER: self._refusing(self.update_user),
            code.DELETE_USER: self._refusing(self.delete_user),
            code.GET_USER: self._refusing(self.get_user),
            code.LIST_USERS: self._refusing(self.list_users),
            code.CREATE_ACL: self._refusing(self.put_acl),
            code.UPDATE_ACL: self._refusing(self.put_acl),
            code.DELETE_ACL: self._refusing(self.delete_acl),
            code.GET_ACL: self._refusing(self.get_acl),
            code.LIST_ACLS: self._refusing(self.list_acls),
        }

    # --- users ---

    def create_user(self, conn: ServerConnection, command: Command) -> None:
        """Answer 3001. Only a Super user makes another one."""
        name, info = _username(command), _user_info(command)
        if not info.password:
            raise ChangeRefused(ResponseCode.NO_PERMISSION, "password can not be blank")
        user_type = _user_type(info) or UserType.NORMAL
        user = User(name, (Secret(info.password),), user_type, _user_status(info) or UserStatus.ENABLE)
        if user.is_super and not self._asked_by_super(conn):
            raise ChangeRefused(ResponseCode.SYSTEM_ERROR, ONLY_SUPER_CREATES)
        if self._guard.user(name) is not None:
            raise ChangeRefused(ResponseCode.NO_PERMISSION, "The user is existed")
        self._change(conn, command, lambda tables: tables.create_user(user), f"created the user {name} ({user_type})")

    def update_user(self, conn: ServerConnection, command: Command) -> None:
        """Answer 3002: change the members that are given."""
        name, info = _username(command), _user_info(command)
        user_type, status = _user_type(info), _user_status(info)
        secret = Secret(info.password) if info.password else None
        by_super = self._asked_by_super(conn)
        if user_type is UserType.SUPER and not by_super:
            raise ChangeRefused(ResponseCode.SYSTEM_ERROR, ONLY_SUPER_UPDATES)

        def change(tables: AccessTables) -> AccessTables:
            _check_rank(tables, name, by_super)
            return tables.update_user(name, secret=secret, keep_previous=bool(info.keep_previous), type=user_type, status=status)

        what = [text for text in ("secret" if secret else "", user_type or "", status or "") if text]
        self._change(conn, command, change, f"updated the user {name} ({', '.join(what) or 'nothing'})")

    def delete_user(self, conn: ServerConnection, command: Command) -> None:
        """Answer 3003: delete a user with its policies; an unknown one is none already."""
        name, by_super = _username(command), self._asked_by_super(conn)

        def change(tables: AccessTables) -> AccessTables:
            _check_rank(tables, name, by_super)
            return tables.delete_user(name)

        self._change(conn, command, change, f"deleted the user {name}")

    def get_user(self, conn: ServerConnection, command: Command) -> None:
        """Answer 3004: one user, without its secrets; no body for an unknown one."""
        user = self._guard.store.tables.users.get(_username(command))
        conn.respond(command, ResponseCode.SUCCESS, body=_shown(user).encode() if user is not None else b"")

    def list_users(self, conn: ServerConnection, command: Command) -> None:
        """Answer 3005: the users whose names contain the filter."""
        part = command.header(UserFilter).filter or ""
        shown = [_shown(user) for name, user in sorted(self._guard.store.tables.users.items()) if part in name]
        conn.respond(command, ResponseCode.SUCCESS, body=UserInfo.encode_array(shown) if shown else b"")

    # --- policies ---

    def put_acl(self, conn: ServerConnection, command: Command) -> None:
        """Answer 3006 and 3007, which do the same: add entries, or replace those for the same resources."""
        name = subject_name(command.header(AclRequest).subject)
        info = AclInfo.decode(command.body)
        if not info.policies or not all(policy.entries for policy in info.policies):
            raise ChangeRefused(ResponseCode.SYSTEM_ERROR, "The policies are empty: give at least one entry with a resource and actions.")
        policies = [
            (
                member_named(PolicyType, policy.policy_type or PolicyType.CUSTOM, "policy type"),
                [
                    policy_entry(entry.resource, entry.actions, entry.decision or Decision.ALLOW, entry.source_ips or ())
                    for entry in policy.entries
                ],
            )
            for policy in info.policies
        ]
        by_super = self._asked_by_super(conn)

        def change(tables: AccessTables) -> AccessTables:
            _check_rank(tables, name, by_super)
            for policy_type, entries in policies:
                tables = tables.put_entries(name, policy_type, entries)
            return tables

        what = "; ".join(
            f"{entry.decision} {','.join(entry.actions)} on {entry.resource}" for _, entries in policies for entry in entries[:10]
        )
        self._change(conn, command, change, f"set policies of the user {name}: {what}")

    def delete_acl(self, conn: ServerConnection, command: Command) -> None:
        """Answer 3008: delete all policies of a subject, those of one type, or one entry."""
        header = command.header(AclRequest)
        name = subject_name(header.subject)
        policy_type = member_named(PolicyType, header.policy_type, "policy type") if header.policy_type else None
        self._change(
            conn,
            command,
            lambda tables: tables.delete_policies(name, policy_type, header.resource),
            f"deleted policies of the user {name} ({header.resource or 'all'})",
        )

    def get_acl(self, conn: ServerConnection, command: Command) -> None:
        """Answer 3009: the policies of a user; no body for one without any."""
        name = subject_name(command.header(AclRequest).subject)
        tables = self._guard.store.tables
        if name not in tables.users:
            raise ChangeRefused(ResponseCode.NO_PERMISSION, NO_SUBJECT)
        policies = tables.policies.get(name)
        conn.respond(command, ResponseCode.SUCCESS, body=_acl(name, policies).encode() if policies else b"")

    def list_acls(self, conn: ServerConnection, command: Command) -> None:
        """Answer 3010: the policies whose subject and resource contain the filters."""
        header = command.header(AclFilter)
        subject, resource = header.subject_filter or "", header.resource_filter or ""
        shown: list[AclInfo] = []
        for name, policies in sorted(self._guard.store.tables.policies.items()):
            if subject in f"{SUBJECT_PREFIX}{name}":
                acl = _acl(name, policies, resource)
                if acl.policies:
                    shown.append(acl)
        conn.respond(command, ResponseCode.SUCCESS, body=AclInfo.encode_array(shown) if shown else b"")

    # --- answering ---

    @staticmethod
    def _refusing(handler: Handler) -> Handler:
        def handle(conn: ServerConnection, command: Command) -> None:
            try:
                handler(conn, command)
            except ChangeRefused as e:
                conn.respond(command, e.code, remark=e.remark)
            except ConfigError as e:
                conn.respond(command, ResponseCode.NO_PERMISSION, remark=str(e))

        return handle

    def _asked_by_super(self, conn: ServerConnection) -> bool:
        user = self._guard.user(conn.user)
        return user is not None and user.is_super

    def _change(self, conn: ServerConnection, command: Command, change: Change, what: str) -> None:
        command.body = b""
        self._background.spawn(self._answer_when_changed(conn, command, change, conn.user or "", what), "a change of users or policies")

    async def _answer_when_changed(self, conn: ServerConnection, command: Command, change: Change, by: str, what: str) -> None:
        try:
            await self._guard.change(change)
        except ChangeRefused as e:
            conn.respond(command, e.code, remark=e.remark)
        except (ConfigError, ProtocolError) as e:
            conn.respond(command, ResponseCode.NO_PERMISSION, remark=str(e))
        except OSError as e:
            event(audit, logging.ERROR, "users_change_failed", by=by, peer=conn.peer, change=what, reason=e)
            conn.respond(command, ResponseCode.SYSTEM_ERROR, remark=f"the file of users cannot be written: {e.strerror or e}")
        else:
            event(audit, logging.INFO, "users_changed", by=by, peer=conn.peer, change=what)
            conn.respond(command, ResponseCode.SUCCESS)


def _check_rank(tables: AccessTables, name: str, by_super: bool) -> None:
    user = tables.users.get(name)
    if user is not None and user.is_super and not by_super:
        raise ChangeRefused(ResponseCode.NO_PERMISSION, ONLY_SUPER_UPDATES)


def _username(command: Command) -> str:
    name = command.header(UserRequest).username
    if not name.strip():
        raise ChangeRefused(ResponseCode.INVALID_PARAMETER, "The username is blank")
    return name


def _user_info(command: Command) -> UserInfo:
    return UserInfo.decode(command.body) if command.body else UserInfo()


def _user_type(info: UserInfo) -> UserType | None:
    return member_named(UserType, info.user_type, "user type") if info.user_type else None


def _user_status(info: UserInfo) -> UserStatus | None:
    return member_named(UserStatus, info.user_status, "user status") if info.user_status else None


def _shown(user: User) -> UserInfo:
    return UserInfo(user.username, user_type=user.type.value, user_status=user.status.value)


def _acl(name: str, policies: Iterable[Policy], part: str = "") -> AclInfo:
    shown = [PolicyInfo([_entry(entry) for entry in policy.entries if part in entry.resource], policy.type.value) for policy in policies]
    return AclInfo(f"{SUBJECT_PREFIX}{name}", [policy for policy in shown if policy.entries])


def _entry(entry: PolicyEntry) -> PolicyEntryInfo:
    actions = [action.value for action in entry.actions]
    return PolicyEntryInfo(entry.resource, actions, list(entry.source_ips) or None, entry.decision.value)
