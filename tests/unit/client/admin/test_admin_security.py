"""Users and policies through AdminClient, at a broker with access control."""

import pytest

from sprocketmq import sync
from sprocketmq.broker import Broker, BrokerConfig
from sprocketmq.client.admin import AdminClient
from sprocketmq.errors import AuthorizationFailed, BrokerError, ConfigError
from sprocketmq.namesrv import NameServer, NameServerConfig
from sprocketmq.protocol.bodies import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from sprocketmq.protocol.credentials import Credentials, Secret
from sprocketmq.security.config import SecurityConfig
from sprocketmq.security.tables import AccessTables
from sprocketmq.security.user_file import create_users_file, read_users_file
from sprocketmq.security.users import User, UserStatus, UserType
from sprocketmq.storage.store import StoreConfig
from sprocketmq.testing import eventually

ADMIN = Credentials("admin", "the secret of the admin here")
SECRET = "the secret of an application"


@pytest.fixture
def security(tmp_path):
    users_file = tmp_path / "users.json"
    create_users_file(users_file, AccessTables().create_user(User("admin", (ADMIN.secret_key,), UserType.SUPER)))
    return SecurityConfig(users_file=users_file, inner_credentials=Credentials("inner", "the secret that brokers share"))


@pytest.fixture
async def namesrv(security):
    server = NameServer(NameServerConfig(port=0, security=security))
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def secured(tmp_path, security, namesrv):
    """A broker that knows the user ``admin``."""
    store = StoreConfig(root=tmp_path / "store", commitlog_segment_bytes=1 << 20, preallocate=False, disk_warning_ratio=1.0)
    broker = Broker(BrokerConfig(store=store, port=0, namesrv=(namesrv.address,), security=security))
    try:
        await broker.start()
        yield broker
    finally:
        await broker.stop()


@pytest.fixture
async def admin(secured):
    async with AdminClient(namesrv=secured.config.namesrv, credentials=ADMIN) as client:
        yield client


def rights(*resources, subject="User:app", decision="Allow"):
    return AclInfo(subject, [PolicyInfo([PolicyEntryInfo(resource, ["Pub", "Sub"], ["127.0.0.0/8"], decision) for resource in resources])])


async def test_users_are_created_changed_shown_and_deleted(admin, secured):
    at = secured.address
    await admin.create_user(at, "app", Secret(SECRET))
    assert await admin.user(at, "app") == UserInfo("app", None, "Normal", "enable")
    await admin.update_user(at, "app", user_type=UserType.SUPER, status=UserStatus.DISABLE)
    assert [(info.username, info.user_type, info.user_status) for info in await admin.users(at)] == [
        ("admin", "Super", "enable"),
        ("app", "Super", "disable"),
    ]
    await admin.update_user(at, "app", secret="another secret of the app", keep_previous=True)
    assert [secret.reveal() for secret in read_users_file(secured.config.security.users_file).users["app"].secrets] == [
        "another secret of the app",
        SECRET,
    ]
    assert [info.username for info in await admin.users(at, "dm")] == ["admin"]
    await admin.delete_user(at, "app")
    assert await admin.user(at, "app") is None
    assert await admin.users(at, "nobody") == []


async def test_policies_are_put_shown_and_deleted(admin, secured):
    at = secured.address
    await admin.create_user(at, "app", SECRET)
    assert await admin.acl(at, "User:app") is None
    await admin.put_acl(at, rights("Topic:t*", "Group:g"))
    await admin.put_acl(at, rights("Group:g", decision="Deny"))
    acl = await admin.acl(at, "User:app")
    assert acl is not None
    assert [(entry.resource, entry.decision, entry.source_ips) for entry in acl.policies[0].entries] == [
        ("Topic:t*", "Allow", ["127.0.0.0/8"]),
        ("Group:g", "Deny", ["127.0.0.0/8"]),
    ]
    assert [info.subject for info in await admin.acls(at, subject="app", resource="Topic")] == ["User:app"]
    await admin.delete_acl(at, "User:app", "Group:g")
    assert [entry.resource for info in await admin.acls(at) for policy in info.policies for entry in policy.entries] == ["Topic:t*"]
    await admin.delete_acl(at, "User:app")
    assert await admin.acls(at) == []


async def test_refusals_are_errors_with_the_brokers_text(admin, secured, namesrv):
    with pytest.raises(BrokerError, match="characters can be guessed") as caught:
        await admin.create_user(secured.address, "app", "12345678")
    assert "12345678" not in str(caught.value)
    with pytest.raises(BrokerError, match="The user is existed"):
        await admin.create_user(secured.address, "admin", SECRET)
    with pytest.raises(ConfigError, match="nothing to change"):
        await admin.update_user(secured.address, "admin")
    await admin.create_user(secured.address, "app", SECRET)
    await eventually(lambda: namesrv.guard.user("app") is not None)  # it has the same file
    async with AdminClient(namesrv=namesrv.address, credentials=Credentials("app", SECRET)) as other:
        with pytest.raises(AuthorizationFailed, match="no permission"):
            await other.users(secured.address)


async def test_no_repr_shows_a_password():
    assert SECRET not in repr(UserInfo("app", SECRET))


def test_the_blocking_face_has_the_same_methods():
    for name in ("create_user", "update_user", "delete_user", "user", "users", "put_acl", "delete_acl", "acl", "acls"):
        assert hasattr(sync.AdminClient, name)
