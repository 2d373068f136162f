"""A broker with users and policies: what reaches its handlers, and what a change of users does to clients that are connected."""

import asyncio
import json
import stat
from dataclasses import dataclass

import pytest
from asking import Asking

from sprocketmq.broker.replication.roles import Role
from sprocketmq.errors import ConfigError
from sprocketmq.net.client import ConnectionPool
from sprocketmq.protocol.bodies import AclInfo, ConsumerIdList, RuntimeInfo, UserInfo
from sprocketmq.protocol.codes import RequestCode
from sprocketmq.protocol.command import to_ext
from sprocketmq.protocol.credentials import Credentials, Secret
from sprocketmq.protocol.headers import CreateTopic
from sprocketmq.protocol.records import decode_records
from sprocketmq.security.config import SecurityConfig
from sprocketmq.security.guard import CHECK_FAILED
from sprocketmq.security.policies import PolicyType, policy_entry
from sprocketmq.security.tables import AccessTables
from sprocketmq.security.user_file import change_users_file, create_users_file, read_users_file
from sprocketmq.security.users import User, UserStatus, UserType
from sprocketmq.testing import eventually

SECRETS = {name: f"the secret of {name} in these tests" for name in ("admin", "second", "producer", "consumer", "operator", "inner")}


class SignedAsking(Asking):
    """Requests over one connection, signed by a user; unsigned for None."""

    def __init__(self, broker, user, secret=None):
        super().__init__(broker)
        credentials = Credentials(user, secret or SECRETS[user]) if user is not None else None
        self.pool = ConnectionPool(expected="broker", on_request=self._on_request, credentials=credentials)

    async def messages(self, topic):
        return decode_records((await self.pull(topic, 0, group="TOOLS_CONSUMER")).body)


@dataclass
class Secured:
    """A broker with access control, and clients of it by user."""

    broker: object
    users_file: object
    clients: list

    async def as_user(self, user, secret=None):
        client = SignedAsking(self.broker, user, secret)
        self.clients.append(client)
        await client.open()
        return client

    async def reload(self, change):
        change_users_file(self.users_file, change)
        await self.broker.guard.reload_if_changed()


def grants(username, *entries):
    return lambda old: old.put_entries(
        username, PolicyType.CUSTOM, [policy_entry(resource, actions, "Allow") for resource, *actions in entries]
    )


def users():
    tables = AccessTables()
    for name, user_type in (("admin", UserType.SUPER), ("producer", None), ("consumer", None), ("operator", None)):
        tables = tables.create_user(User(name, (Secret(SECRETS[name]),), user_type or UserType.NORMAL))
    tables = grants("producer", ("Topic:t", "Pub"))(tables)
    tables = grants("consumer", ("Topic:t", "Sub", "Get"), ("Group:g", "Sub"))(tables)
    return grants("operator", ("Cluster:DefaultCluster", "Get", "Update"))(tables)


@pytest.fixture
def users_file(tmp_path):
    create_users_file(tmp_path / "users.json", users())
    return tmp_path / "users.json"


@pytest.fixture
async def secured(start_broker, users_file):
    config = SecurityConfig(users_file=users_file, inner_credentials=Credentials("inner", SECRETS["inner"]))
    made = Secured(await start_broker(security=config), users_file, [])
    admin = await made.as_user("admin")
    for topic in ("t", "other"):
        assert (await admin(RequestCode.UPDATE_AND_CREATE_TOPIC, to_ext(CreateTopic(topic, 1, 1, 6)))).code == 0
    yield made
    for client in made.clients:
        await client.close()


# --- who may do what ---


async def test_unsigned_requests_and_unknown_users_are_refused(secured):
    for user, secret in ((None, None), ("ghost", "no user has this secret"), ("producer", "this is another secret")):
        client = await secured.as_user(user, secret)
        answer = await client.send("t")
        assert (answer.code, answer.remark) == (16, CHECK_FAILED)
    assert (await (await secured.as_user("producer")).send("t")).code == 0


async def test_each_user_does_what_its_policies_allow_and_nothing_else(secured):
    producer, consumer = await secured.as_user("producer"), await secured.as_user("consumer")
    assert (await producer.send("t", b"one")).code == 0
    assert (
        await producer.send("other")
    ).remark == "User:producer has no permission to access Topic:other from 127.0.0.1, no matched policies."
    assert (await producer.pull("t", 0, group="g")).code == 16
    assert await consumer.bodies("t", group="g") == [b"one"]
    assert (await consumer.send("t")).code == 16
    assert (await consumer.pull("other", 0, group="g")).code == 16
    assert (await consumer.pull("t", 0, group="another")).code == 16
    assert (await consumer.heartbeat(consumers=["g"], topics=["t"])).code == 0
    assert (await consumer.heartbeat(consumers=["g"], topics=["other"])).code == 16


async def test_runtime_and_configuration_show_no_secret(secured, tmp_path):
    operator = await secured.as_user("operator")
    config = await operator(RequestCode.GET_BROKER_CONFIG)
    runtime = await operator(RequestCode.GET_BROKER_RUNTIME_INFO)
    assert (config.code, runtime.code) == (0, 0)
    assert RuntimeInfo.decode(runtime.body).table
    shown = bytes(config.body) + bytes(runtime.body) + repr(secured.broker.config).encode()
    for secret in (*SECRETS.values(), secured.broker.config.replication_secret):
        assert secret.encode() not in shown


async def test_security_cannot_be_changed_over_the_network(secured):
    admin = await secured.as_user("admin")
    for key in ("authenticationEnabled", "authorizationEnabled", "users_file", "tls_mode", "storePathRootDir", "namesrvAddr"):
        answer = await admin(25, {}, f"autoCreateTopicEnable=false\n{key}=false\n".encode())
        assert answer.code == 16
        assert answer.remark.startswith(f"'{key}' cannot be changed while the broker runs; nothing was changed")
    assert secured.broker.topics.auto_create
    for user in ("consumer", "producer", None):
        assert (await (await secured.as_user(user))(25, {}, b"autoCreateTopicEnable=false\n")).code == 16
    assert (await (await secured.as_user(None)).send("t")).code == 16


async def test_members_are_not_sent_the_login_of_the_one_who_asks(secured):
    consumer, admin = await secured.as_user("consumer"), await secured.as_user("admin")
    await consumer.heartbeat("member", consumers=["g"], topics=["t"])
    asking = asyncio.ensure_future(admin(RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "g", "clientId": "member"}))
    while (pushed := await consumer.next_push()).code != RequestCode.GET_CONSUMER_RUNNING_INFO:
        pass  # news about the group's members
    assert pushed.ext == {"consumerGroup": "g", "clientId": "member"}
    consumer.conn.respond(pushed, 0, body=b"{}")
    assert (await asking).code == 0


# --- messages by their place in the log ---


async def test_a_message_of_another_topic_cannot_be_given_back_to_ones_own_group(secured):
    admin, consumer, producer = [await secured.as_user(name) for name in ("admin", "consumer", "producer")]
    await admin.send("other", b"hidden")
    hidden = (await admin.messages("other"))[0].commitlog_offset
    await producer.send("t", b"own")
    own = (await admin.messages("t"))[0].commitlog_offset
    ext = {"group": "g", "delayLevel": "1", "originMsgId": "", "originTopic": "t", "unitMode": "false"}
    answer = await consumer(RequestCode.CONSUMER_SEND_MSG_BACK, {**ext, "offset": str(hidden)})
    assert answer.code == 16
    assert "may not read" in answer.remark
    assert (await consumer(RequestCode.CONSUMER_SEND_MSG_BACK, {**ext, "offset": str(own)})).code == 0


async def test_a_message_of_another_topic_cannot_be_viewed_by_its_offset(secured):
    admin, consumer = await secured.as_user("admin"), await secured.as_user("consumer")
    await admin.send("other", b"hidden")
    hidden = (await admin.messages("other"))[0].commitlog_offset
    await admin.send("t", b"own")
    own = (await admin.messages("t"))[0].commitlog_offset
    for topic, offset, code in (("t", hidden, 1), ("other", hidden, 16), ("t", own, 0)):
        assert (await consumer(RequestCode.VIEW_MESSAGE_BY_ID, {"topic": topic, "offset": str(offset)})).code == code
    assert (await admin(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(hidden)})).code == 0


# --- users who go while they are connected ---


GOING = {
    "deleted": (lambda old: old.delete_user("consumer"), CHECK_FAILED),
    "disabled": (lambda old: old.update_user("consumer", status=UserStatus.DISABLE), CHECK_FAILED),
    "another secret": (lambda old: old.update_user("consumer", secret=Secret("another secret for consumer")), CHECK_FAILED),
    "topic revoked": (
        lambda old: old.delete_policies("consumer", resource="Topic:t"),
        "User:consumer has no permission to access Topic:t from 127.0.0.1, no matched policies.",
    ),
    "group revoked": (
        lambda old: old.delete_policies("consumer", resource="Group:g"),
        "User:consumer has no permission to access Group:g from 127.0.0.1, no matched policies.",
    ),
}


@pytest.mark.parametrize("how", GOING)
async def test_a_user_who_goes_gets_no_message_any_more(secured, how):
    change, remark = GOING[how]
    consumer, other, producer = [await secured.as_user(name) for name in ("consumer", "admin", "producer")]
    held = consumer.pull("t", 0, group="g", wait_ms=20_000)
    stays = other.pull("t", 0, group="g", wait_ms=20_000)
    await eventually(lambda: secured.broker.pulls.held_count == 2)
    await secured.reload(change)
    answer = await held
    assert (answer.code, answer.remark) == (16, remark)
    assert secured.broker.pulls.held_count == 1
    await producer.send("t", b"later")
    assert (await stays).code == 0
    answer = await consumer.pull("t", 0, group="g")
    assert (answer.code, bytes(answer.body)) == (16, b"")


async def test_a_policy_that_changes_for_others_leaves_held_pulls_alone(secured):
    consumer, producer = await secured.as_user("consumer"), await secured.as_user("producer")
    held = consumer.pull("t", 0, group="g", wait_ms=20_000)
    await eventually(lambda: secured.broker.pulls.held_count == 1)
    await secured.reload(grants("producer", ("Topic:more", "Pub")))
    await secured.reload(grants("consumer", ("Topic:more", "Sub")))
    assert secured.broker.pulls.held_count == 1
    await producer.send("t", b"later")
    assert (await held).code == 0


async def test_a_deleted_user_is_no_member_of_its_group_any_more(secured):
    consumer, admin = await secured.as_user("consumer"), await secured.as_user("admin")
    await consumer.heartbeat("consumer-1", consumers=["g"], topics=["t"])
    await admin.heartbeat("admin-1", consumers=["g"], topics=["t"])

    async def members():
        answer = await admin(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "g"})
        return sorted(ConsumerIdList.decode(answer.body).consumer_id_list)

    assert await members() == ["admin-1", "consumer-1"]
    await secured.reload(lambda old: old.delete_user("consumer"))
    assert await members() == ["admin-1"]


# --- starting ---


async def test_a_broker_whose_users_cannot_be_read_does_not_start(start_broker, tmp_path):
    with pytest.raises(ConfigError, match="secure init"):
        await start_broker(security=SecurityConfig(users_file=tmp_path / "none.json"))


async def test_a_broker_without_a_super_user_does_not_start(start_broker, tmp_path):
    create_users_file(tmp_path / "users.json", AccessTables().create_user(User("app", (Secret(SECRETS["producer"]),))))
    with pytest.raises(ConfigError, match="no enabled Super user"):
        await start_broker(security=SecurityConfig(users_file=tmp_path / "users.json"))


@pytest.mark.parametrize("settings", [{"ha_port": 0}, {"role": "SLAVE", "broker_id": 1, "namesrv": ("127.0.0.1:1",)}])
async def test_replication_among_secured_brokers_needs_a_secret(start_broker, users_file, settings):
    settings = {**settings, "role": Role(settings.get("role", "ASYNC_MASTER"))}
    with pytest.raises(ConfigError, match="inner_credentials"):
        await start_broker(security=SecurityConfig(users_file=users_file), **settings)


# --- requests 3001 to 3010 ---


def user_info(**members):
    return UserInfo(**members).encode()


async def told(client, code, ext=None, body=b""):
    answer = await client(code, ext, body)
    return (answer.code, answer.remark) if answer.code else 0


async def test_users_are_created_shown_updated_and_deleted(secured, said):
    admin = await secured.as_user("admin")
    created = user_info(username="new", password="the secret of a new user")
    assert await told(admin, RequestCode.CREATE_USER, {"username": "new"}, created) == 0
    shown = UserInfo.decode((await admin(RequestCode.GET_USER, {"username": "new"})).body)
    assert (shown.username, shown.password, shown.user_type, shown.user_status) == ("new", None, "Normal", "enable")
    (line,) = said("users_changed")
    assert line.startswith("users_changed by=admin peer=127.0.0.1:")
    assert " change=" in line
    assert "the secret" not in line
    client = await secured.as_user("new", "the secret of a new user")
    assert "no permission" in (await client.send("t")).remark
    assert await told(admin, RequestCode.UPDATE_USER, {"username": "new"}, user_info(user_status="disable")) == 0
    assert (await client.send("t")).remark == CHECK_FAILED
    assert await told(admin, RequestCode.UPDATE_USER, {"username": "new"}, user_info(user_status="enable", user_type="Super")) == 0
    assert (await client.send("t")).code == 0
    assert await told(admin, RequestCode.DELETE_USER, {"username": "new"}) == 0
    assert (await client.send("t")).remark == CHECK_FAILED
    assert (await admin(RequestCode.GET_USER, {"username": "new"})).body == b""
    assert await told(admin, RequestCode.DELETE_USER, {"username": "new"}) == 0
    assert stat.S_IMODE(secured.users_file.stat().st_mode) == 0o600


async def test_a_secret_is_changed_at_once_or_beside_the_old_one(secured):
    admin, producer = await secured.as_user("admin"), await secured.as_user("producer")
    new = await secured.as_user("producer", "a new secret of the producer")
    body = user_info(password="a new secret of the producer", keep_previous=True)
    assert await told(admin, RequestCode.UPDATE_USER, {"username": "producer"}, body) == 0
    assert ((await producer.send("t")).code, (await new.send("t")).code) == (0, 0)
    assert await told(admin, RequestCode.UPDATE_USER, {"username": "producer"}, user_info(password="a new secret of the producer")) == 0
    assert ((await producer.send("t")).code, (await new.send("t")).code) == (16, 0)


async def test_users_are_listed_by_a_part_of_their_name_without_passwords(secured):
    admin = await secured.as_user("admin")
    everything = await admin(RequestCode.LIST_USERS)
    assert [user.username for user in UserInfo.decode_array(everything.body)] == ["admin", "consumer", "operator", "producer"]
    some = await admin(RequestCode.LIST_USERS, {"filter": "cer"})
    assert json.loads(some.body) == [{"username": "producer", "userType": "Normal", "userStatus": "enable"}]
    assert (await admin(RequestCode.LIST_USERS, {"filter": "nobody"})).body == b""
    assert b"secret" not in bytes(everything.body)


async def test_what_cannot_be_done_with_users_says_what_the_reference_says(secured):
    admin, operator = await secured.as_user("admin"), await secured.as_user("operator")
    secret = "the secret of a new user"
    create, update, delete = RequestCode.CREATE_USER, RequestCode.UPDATE_USER, RequestCode.DELETE_USER
    super_info = user_info(password=secret, user_type="Super")
    assert await told(admin, create, {}, user_info(password=secret)) == (29, "The username is blank")
    assert await told(admin, create, {"username": "x"}, user_info()) == (16, "password can not be blank")
    assert await told(admin, create, {"username": "producer"}, user_info(password=secret)) == (16, "The user is existed")
    assert await told(admin, create, {"username": "inner"}, user_info(password=secret)) == (16, "The user is existed")
    assert await told(operator, create, {"username": "x"}, super_info) == (1, "The super user can only be create by super user")
    assert await told(admin, update, {"username": "x"}, user_info(password=secret)) == (16, "The user is not exist")
    assert await told(operator, update, {"username": "producer"}, user_info(user_type="Super")) == (
        1,
        "The super user can only be update by super user",
    )
    assert await told(operator, update, {"username": "admin"}, user_info(password=secret)) == (
        16,
        "The super user can only be update by super user",
    )
    assert await told(operator, delete, {"username": "admin"}) == (16, "The super user can only be update by super user")
    for weak in ("12345678", "fifteen charact"):
        code, remark = await told(admin, create, {"username": "x"}, user_info(password=weak))
        assert code == 16
        assert f"{len(weak)} characters can be guessed" in remark
    for ext, body in (({"username": "a b"}, user_info(password=secret)), ({"username": "x"}, user_info(password=secret, user_type="Root"))):
        assert (await admin(create, ext, body)).code == 16
    assert await told(operator, create, {"username": "x"}, user_info(password=secret)) == 0


async def test_the_last_super_user_cannot_be_removed_or_disabled(secured):
    admin = await secured.as_user("admin")
    for code, body in (
        (RequestCode.DELETE_USER, b""),
        (RequestCode.UPDATE_USER, user_info(user_status="disable")),
        (RequestCode.UPDATE_USER, user_info(user_type="Normal")),
    ):
        answer = await told(admin, code, {"username": "admin"}, body)
        assert answer[0] == 16
        assert "last enabled Super user" in answer[1]
    assert read_users_file(secured.users_file).super_users == ["admin"]


async def test_users_and_policies_are_for_administrators(secured):
    for name in ("producer", "consumer"):
        client = await secured.as_user(name)
        for code in range(3001, 3011):
            assert (await client(code, {"username": "producer", "subject": "User:producer"})).code == 16, code


def acl(*entries, policy_type=None):
    policy = {"entries": [dict(zip(("resource", "actions", "decision", "sourceIps"), entry, strict=False)) for entry in entries]}
    if policy_type:
        policy["policyType"] = policy_type
    return json.dumps({"policies": [policy]}).encode()


async def test_policies_are_created_shown_updated_and_deleted(secured):
    admin, producer = await secured.as_user("admin"), await secured.as_user("producer")
    subject = {"subject": "User:producer"}
    assert await told(admin, RequestCode.CREATE_ACL, subject, acl(("Topic:other", ["Pub"], "Allow"))) == 0
    assert (await producer.send("other")).code == 0
    assert await told(admin, RequestCode.UPDATE_ACL, subject, acl(("Topic:other", ["Pub"], "Deny", ["127.0.0.0/8"]))) == 0
    assert (await producer.send("other")).remark.endswith("from 127.0.0.1, the decision is deny.")
    shown = await admin(RequestCode.GET_ACL, subject)
    assert json.loads(shown.body) == {
        "subject": "User:producer",
        "policies": [
            {
                "policyType": "Custom",
                "entries": [
                    {"resource": "Topic:t", "actions": ["Pub"], "decision": "Allow"},
                    {"resource": "Topic:other", "actions": ["Pub"], "sourceIps": ["127.0.0.0/8"], "decision": "Deny"},
                ],
            }
        ],
    }
    assert await told(admin, RequestCode.DELETE_ACL, {**subject, "resource": "Topic:other"}) == 0
    assert (await producer.send("other")).remark.endswith("no matched policies.")
    assert await told(admin, RequestCode.DELETE_ACL, subject) == 0
    assert (await producer.send("t")).code == 16
    assert (await admin(RequestCode.GET_ACL, subject)).body == b""
    assert await told(admin, RequestCode.CREATE_ACL, subject, acl(("Topic:*", ["Pub"], "Allow"), policy_type="Default")) == 0
    assert (await producer.send("t")).code == 0


async def test_policies_are_listed_by_parts_of_subject_and_resource(secured):
    admin = await secured.as_user("admin")

    async def listed(**ext):
        found = AclInfo.decode_array((await admin(RequestCode.LIST_ACLS, ext)).body)
        return {info.subject: [entry.resource for policy in info.policies for entry in policy.entries] for info in found}

    everything = {
        "User:consumer": ["Topic:t", "Group:g"],
        "User:operator": ["Cluster:DefaultCluster"],
        "User:producer": ["Topic:t"],
    }
    assert await listed() == everything
    assert await listed(subjectFilter="produ") == {"User:producer": ["Topic:t"]}
    assert await listed(resourceFilter="Topic") == {"User:consumer": ["Topic:t"], "User:producer": ["Topic:t"]}
    assert await listed(subjectFilter="nobody") == {}


async def test_what_cannot_be_done_with_policies_says_why(secured):
    admin = await secured.as_user("admin")
    create, delete, get = RequestCode.CREATE_ACL, RequestCode.DELETE_ACL, RequestCode.GET_ACL
    good = acl(("Topic:t", ["Pub"], "Allow"))
    mine = {"subject": "User:producer"}
    assert await told(admin, create, {"subject": "User:ghost"}, good) == (16, "The subject of User:ghost is not exist.")
    assert await told(admin, delete, {"subject": "User:ghost"}) == (16, "The subject is not exist.")
    assert await told(admin, get, {"subject": "User:ghost"}) == (16, "The subject is not exist.")
    assert await told(admin, delete, {**mine, "resource": "Topic:none"}) == (16, "The acl is not exist.")
    assert (await told(admin, create, mine, b'{"policies":[]}'))[0] == 1
    for body, reason in (
        (acl(("Topic:", ["Pub"], "Allow")), "names nothing"),
        (acl(("t", ["Pub"], "Allow")), "names nothing"),
        (acl(("Queue:t", ["Pub"], "Allow")), "resource type"),
        (acl(("Topic:t", ["Fly"], "Allow")), "no known action"),
        (acl(("Topic:t", ["Any"], "Allow")), "use All"),
        (acl(("Topic:t", ["Pub"], "Perhaps")), "decision"),
        (acl(("Topic:t", ["Pub"], "Allow", ["nowhere"])), "source address"),
        (acl(("Topic:t", ["Pub"], "Allow"), policy_type="Other"), "policy type"),
    ):
        code, remark = await told(admin, create, mine, body)
        assert code == 16
        assert reason in remark
    for subject in ("", "producer", "Role:producer", "User:"):
        assert (await admin(create, {"subject": subject}, good)).code == 16


async def test_a_users_file_that_cannot_be_written_is_told_and_changes_nothing(secured, said):
    admin = await secured.as_user("admin")
    secured.users_file.with_name(".users.json.lock").unlink(missing_ok=True)
    secured.users_file.with_name(".users.json.lock").mkdir()
    code, remark = await told(admin, RequestCode.CREATE_USER, {"username": "x"}, user_info(password="the secret of a new user"))
    assert code == 1
    assert "cannot be written" in remark
    assert (await admin(RequestCode.GET_USER, {"username": "x"})).body == b""
    assert said("users_change_failed")[0].startswith("users_change_failed by=admin peer=127.0.0.1:")
    assert not said("users_changed")


async def test_a_broker_without_users_says_so(ask):
    for code in range(3001, 3011):
        assert (await told(ask, code))[1].startswith("this broker has no users and policies: start it with authentication_enabled")
