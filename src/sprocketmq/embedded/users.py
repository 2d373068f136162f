"""Users of a secure LocalCluster."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from sprocketmq.errors import BrokerError, ConfigError, ConnectFailed
from sprocketmq.protocol.bodies import AclInfo, PolicyEntryInfo, PolicyInfo
from sprocketmq.security.directory import SecureDirectory, write_client
from sprocketmq.security.policies import Decision, policy_entry
from sprocketmq.security.tables import SUBJECT_PREFIX, USER_EXISTS
from sprocketmq.security.users import check_username, new_secret


def add_user(secure: SecureDirectory, namesrv: str, servers: Iterable[str], name: str, rights: Mapping[str, str]) -> Path:
    """Create a user at all servers, which share a file, and return the directory for its clients. Raises ConfigError."""
    from sprocketmq import sync

    entries = [policy_entry(resource, actions.split(","), Decision.ALLOW) for resource, actions in rights.items()]
    directory, secret = secure.root / "users" / check_username(name), new_secret()
    try:
        write_client(directory, secure.authority.read_bytes(), name, secret)
    except FileExistsError:
        raise ConfigError(f"this cluster has a user {name!r} already: its directory is {directory}") from None
    infos = [PolicyEntryInfo(entry.resource, [*entry.actions], decision=entry.decision) for entry in entries]
    with sync.AdminClient(namesrv=namesrv, secure=secure.client) as admin:
        for address in servers:
            try:
                admin.create_user(address, name, secret)
            except ConnectFailed:  # it is stopped, and reads the file when it starts
                continue
            except BrokerError as e:
                if USER_EXISTS not in e.remark:
                    raise
            if infos:
                admin.put_acl(address, AclInfo(f"{SUBJECT_PREFIX}{name}", [PolicyInfo(infos)]))
    return directory
