"""Apache's Java client and mqadmin, with their own signatures and TLS, at our nameserver and broker that want both."""

from __future__ import annotations

import itertools
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.certificates import DAY, Authority
from tests.interop.apache import SMALL, ApacheFailed, JavaClient, Login
from tests.interop.ours import OurProcess
from tests.interop.secured import ADMIN, Handshakes, Secured, our_secured_servers, tls_client
from tests.interop.sides import APACHES_IN_LONG

from sprocketmq import AdminClient
from sprocketmq.errors import TlsFailed
from sprocketmq.net.server_tls import TlsMode
from sprocketmq.testing import eventually

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

_numbers = itertools.count()


@pytest.fixture
def topic(secured_ours: Secured) -> str:
    """A topic of the test's own."""
    return secured_ours.create_topic(f"java_secured_{next(_numbers)}")


@pytest.fixture
def group() -> str:
    """A group of the test's own."""
    return f"java_secured_group_{next(_numbers)}"


@pytest.fixture
def user(secured_ours: Secured, topic: str, group: str) -> Login:
    """A user who may send to the topic, and consume from it with the group."""
    login = Login(f"java-user-{next(_numbers)}", "a-java-user-has-a-long-secret")
    return secured_ours.create_user(login, (f"Topic:{topic}", "Pub,Sub,Get"), (f"Group:{group}", "Sub"))


def numbered(topic: str, numbers: range) -> list[dict[str, object]]:
    return [{"topic": topic, "body": b"%d" % number, "keys": [f"k{number}"]} for number in numbers]


def test_it_sends_in_every_way_and_consumes(secured_java: JavaClient, secured_ours: Secured, user: Login, topic: str, group: str) -> None:
    java, namesrv = secured_java.signed_by(user), secured_ours.namesrv
    java.send(namesrv, numbered(topic, range(4)))
    java.send_batch(namesrv, numbered(topic, range(4, 10)))
    java.send_auto_batch(namesrv, numbered(topic, range(10, 30)))
    java.send_auto_batch(namesrv, numbered(topic, range(30, 40)), blocking=True)
    received = java.consume(namesrv, group, topic, 40)
    assert sorted(int(message["body"]) for message in received) == list(range(40))
    queue = {"topic": topic, "broker": secured_ours.broker, "queue_id": received[0]["queue_id"]}
    assert java.pull(namesrv, group, queue, received[0]["queue_offset"])["messages"][0]["body"] == received[0]["body"]


@pytest.mark.parametrize("who", ["wrong secret", "unknown", "unsigned"])
def test_who_cannot_prove_who_they_are_gets_the_same_answer(
    secured_java: JavaClient, secured_ours: Secured, user: Login, topic: str, who: str
) -> None:
    # A nameserver that refuses says no more to the client than that it has no route.
    login = {"wrong secret": Login(user.access_key, "not-the-secret-of-this-user"), "unknown": Login("who", "a-secret-of-nobody-at-all")}
    java = secured_java.signed_by(login[who]) if who in login else secured_java
    with pytest.raises(ApacheFailed):
        java.send(secured_ours.namesrv, numbered(topic, range(1)))
    printed = java.mqadmin("topicRoute", "-n", secured_ours.namesrv, "-t", topic)
    assert "CODE: 16  DESC: check signature failed." in printed


def test_a_user_without_permission_is_told_what_is_missing(secured_java: JavaClient, secured_ours: Secured, topic: str) -> None:
    login = Login(f"java-reader-{next(_numbers)}", "who-may-read-has-a-secret")
    secured_ours.create_user(login, (f"Topic:{topic}", "Sub,Get"))
    java = secured_java.signed_by(login)
    with pytest.raises(ApacheFailed, match=rf"User:{login.access_key} has no permission to access Topic:{topic} from 127\.0\.0\.1"):
        java.send(secured_ours.namesrv, numbered(topic, range(1)))
    queue = {"topic": topic, "broker": secured_ours.broker, "queue_id": 0}
    with pytest.raises(ApacheFailed, match="Group:not_my_group"):
        java.pull(secured_ours.namesrv, "not_my_group", queue, 0)


def test_a_user_who_is_deleted_while_it_consumes_gets_nothing_more_and_loses_nothing(
    secured_java: JavaClient, secured_ours: Secured, user: Login, topic: str, group: str
) -> None:
    namesrv, admin = secured_ours.namesrv, secured_java.signed_by(ADMIN)
    with secured_java.signed_by(user).push_consumer(namesrv, group, topic) as consumer:
        admin.send(namesrv, numbered(topic, range(8)))
        assert {int(message["body"]) for message in consumer.take(8)} == set(range(8))
        secured_ours.delete_user(user.access_key)
        admin.send(namesrv, numbered(topic, range(8, 16)))
        assert consumer.take(1, timeout_s=2) == []
        again = Login(user.access_key, "another-secret-of-the-same-user")
        secured_ours.create_user(again, (f"Topic:{topic}", "Pub,Sub,Get"), (f"Group:{group}", "Sub"))
        assert consumer.take(1, timeout_s=2) == [], "the old secret is of no use to the new user"
    assert consumer.rest == []
    missing = set(range(8, 16))
    with secured_java.signed_by(again).push_consumer(namesrv, group, topic) as consumer:
        while missing:  # what was not committed before the user was deleted comes a second time
            (message,) = consumer.take(1)
            missing.discard(int(message["body"]))


def test_clear_text_is_refused_where_tls_is_enforced(java: JavaClient, secured_ours: Secured, user: Login, topic: str) -> None:
    with pytest.raises(ApacheFailed):
        java.signed_by(user).send(secured_ours.namesrv, numbered(topic, range(1)))


@pytest.fixture(scope="module")
def permissive(session_home: Path, authority: Authority) -> Iterator[Secured]:
    """Our servers with permissive TLS."""
    with our_secured_servers(session_home / "permissive", authority, mode=TlsMode.PERMISSIVE) as servers:
        yield servers


def test_permissive_servers_take_clear_text_and_tls(java: JavaClient, secured_java: JavaClient, permissive: Secured) -> None:
    topic = permissive.create_topic("both_kinds")
    for client, number in ((java, 0), (secured_java, 1)):
        (result,) = client.signed_by(ADMIN).send(permissive.namesrv, numbered(topic, range(number, number + 1)))
        assert result["status"] == "SEND_OK"
    with pytest.raises(ApacheFailed):
        java.send(permissive.namesrv, numbered(topic, range(1)))


@pytest.mark.parametrize("problem", ["expired", "untrusted"])
async def test_neither_client_goes_on_after_a_certificate_that_is(
    secured_java: JavaClient, authority: Authority, tmp_path: Path, problem: str
) -> None:
    if problem == "expired":
        certificate = authority.issue("expired-server", begins=-2 * DAY, ends=-DAY)
    else:
        certificate = Authority(tmp_path, "another authority").issue("untrusted-server")
    with Handshakes(certificate) as port:
        servers = Secured(authority, port.address, port.address, "none")
        with pytest.raises(TlsFailed) as raised:
            async with AdminClient(**servers.client(ADMIN)) as admin:
                await admin.topics()
        assert raised.value.problem == problem
        of_ours = len(port.outcomes)
        secured_java.signed_by(ADMIN).mqadmin("topicRoute", "-n", port.address, "-t", "any")
        await eventually(lambda: len(port.outcomes) > of_ours, what="the Java client's handshake")
    assert "done" not in port.outcomes
    assert "CERTIFICATE" in port.outcomes[-1]


# --- mqadmin's commands for users and policies ---


@pytest.fixture(params=APACHES_IN_LONG)
def servers(request: pytest.FixtureRequest) -> Secured:
    """Our secured servers, then Apache's: the commands must come out the same."""
    found: Secured = request.getfixturevalue("secured_ours" if request.param == "ours" else "secured_apache")
    return found


def table(printed: str) -> list[list[str]]:
    """Return the columns of what mqadmin prints, without its heading."""
    return [re.split(r"\s{2,}", line.strip()) for line in printed.splitlines() if line.strip() and not line.startswith("#")]


def test_mqadmin_creates_changes_and_deletes_users(secured_java: JavaClient, servers: Secured) -> None:
    where = ("-n", servers.namesrv, "-b", servers.address)
    admin = secured_java.signed_by(ADMIN)
    name = f"made-{next(_numbers)}"

    def user() -> list[str]:
        (row,) = table(admin.mqadmin("getUser", *where, "-u", name))
        return [row[0], *row[-2:]]

    made = admin.mqadmin("createUser", *where, "-u", name, "-p", "first-secret-of-the-user", "-t", "Normal")
    assert f"create user to {servers.address} success" in made
    assert user() == [name, "Normal", "enable"]
    assert "The user is existed" in admin.mqadmin("createUser", *where, "-u", name, "-p", "first-secret-of-the-user")
    assert name in [row[0] for row in table(admin.mqadmin("listUser", *where, "-f", "made-"))]
    assert "success" in admin.mqadmin("updateUser", *where, "-u", name, "-s", "disable")
    assert user() == [name, "Normal", "disable"]
    assert "success" in admin.mqadmin("updateUser", *where, "-u", name, "-s", "enable")
    assert "success" in admin.mqadmin("updateUser", *where, "-u", name, "-t", "Super")
    assert user() == [name, "Super", "enable"]
    assert "success" in admin.mqadmin("updateUser", *where, "-u", name, "-p", "second-secret-of-the-user")
    now = secured_java.signed_by(Login(name, "second-secret-of-the-user"))
    assert "success" in now.mqadmin("updateTopic", *where, "-t", f"of-{name}")
    assert "success" in admin.mqadmin("deleteUser", *where, "-u", name)
    assert table(admin.mqadmin("getUser", *where, "-u", name)) == []


def test_mqadmin_creates_changes_and_deletes_policies(secured_java: JavaClient, servers: Secured) -> None:
    where = ("-n", servers.namesrv, "-b", servers.address)
    admin = secured_java.signed_by(ADMIN)
    name = f"ruled-{next(_numbers)}"
    servers.create_user(Login(name, "whose-policies-are-changed"))
    subject = ("-s", f"User:{name}")

    def entries() -> list[list[str]]:
        return sorted(table(admin.mqadmin("getAcl", *where, *subject)))

    made = admin.mqadmin("createAcl", *where, *subject, "-r", "Topic:a*,Group:g", "-a", "Pub,Sub", "-d", "Allow")
    assert f"create acl to {servers.address} success" in made
    row = [f"User:{name}", "Custom"]
    both = sorted([[*row, "Group:g", "[Pub, Sub]", "null", "Allow"], [*row, "Topic:a*", "[Pub, Sub]", "null", "Allow"]])
    assert [[cell or "null" for cell in found] for found in entries()] == both
    changed = admin.mqadmin("updateAcl", *where, *subject, "-r", "Topic:a*", "-a", "Pub", "-d", "Deny", "-i", "10.0.0.0/8")
    assert "success" in changed
    assert [*row, "Topic:a*", "[Pub]", "[10.0.0.0/8]", "Deny"] in entries()
    listed = table(admin.mqadmin("listAcl", *where, "-s", name))
    assert sorted(found[2] for found in listed) == ["Group:g", "Topic:a*"]
    assert "success" in admin.mqadmin("deleteAcl", *where, *subject, "-r", "Topic:a*")
    assert [found[2] for found in entries()] == ["Group:g"]
    assert "success" in admin.mqadmin("deleteAcl", *where, *subject)
    assert entries() == []
    assert "not exist" in admin.mqadmin("createAcl", *where, "-s", "User:nobody", "-r", "Topic:a", "-a", "Pub", "-d", "Allow")


def test_a_normal_user_can_change_nobody(secured_java: JavaClient, servers: Secured) -> None:
    where = ("-n", servers.namesrv, "-b", servers.address)
    login = Login(f"powerless-{next(_numbers)}", "who-may-do-nothing-at-all")
    servers.create_user(login)
    powerless = secured_java.signed_by(login)
    for command in (
        ("createUser", "-u", "mine", "-p", "a-secret-that-is-long-enough", "-t", "Super"),
        ("updateUser", "-u", login.access_key, "-t", "Super"),
        ("deleteUser", "-u", "admin"),
        ("getUser", "-u", "admin"),
        ("createAcl", "-s", f"User:{login.access_key}", "-r", "*", "-a", "All", "-d", "Allow"),
        ("getAcl", "-s", f"User:{login.access_key}"),
    ):
        printed = powerless.mqadmin(command[0], *where, *command[1:])
        assert "has no permission to access Cluster:SecuredCluster" in printed, command
        assert "success" not in printed


def test_users_and_policies_of_apaches_broker_are_copied_to_ours(
    secured_java: JavaClient, secured_apache: Secured, secured_ours: Secured
) -> None:
    admin = secured_java.signed_by(ADMIN)
    login = Login(f"copied-{next(_numbers)}", "who-is-copied-has-a-secret")
    topic = f"copied_{next(_numbers)}"
    secured_apache.create_topic(topic)
    secured_apache.create_user(login, (f"Topic:{topic}", "Pub,Get"))
    way = ("-n", secured_ours.namesrv, "-f", secured_apache.address, "-t", secured_ours.address)
    assert "success" in admin.mqadmin("copyUser", *way, "-u", login.access_key)
    assert "success" in admin.mqadmin("copyAcl", *way, "-s", f"User:{login.access_key}")
    secured_ours.create_topic(topic)
    secured_ours.wait_for_user(login, topic)
    (result,) = secured_java.signed_by(login).send(secured_ours.namesrv, numbered(topic, range(1)))
    assert result["status"] == "SEND_OK"
    # The other way there is no secret to copy: ours never gives one away.
    login = secured_ours.create_user(Login(f"stays-{next(_numbers)}", "who-stays-has-a-secret-too"))
    way = ("-n", secured_ours.namesrv, "-f", secured_ours.address, "-t", secured_apache.address)
    printed = admin.mqadmin("copyUser", *way, "-u", login.access_key)
    assert "password can not be blank" in printed
    assert login.secret_key not in printed


def test_no_secret_is_in_a_log_line_or_a_configuration(
    secured_java: JavaClient, secured_ours: Secured, user: Login, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secured_java.signed_by(user).send(secured_ours.namesrv, numbered(topic, range(1)))
    where = ("-n", secured_ours.namesrv, "-b", secured_ours.address)
    admin = secured_java.signed_by(ADMIN)
    shown = admin.mqadmin("getBrokerConfig", *where) + admin.mqadmin("listUser", *where) + admin.mqadmin("brokerStatus", *where)
    for secret in (user.secret_key, ADMIN.secret_key):
        assert secret not in shown
        assert secret not in caplog.text


def test_the_java_client_uses_a_cluster_that_secure_init_has_made(home: Path) -> None:
    root = home / "made-by-secure-init"
    made = root / "secure"
    root.mkdir()
    subprocess.run([sys.executable, "-m", "sprocketmq", "secure", "init", str(made)], check=True, capture_output=True, timeout=60)
    credentials = json.loads((made / "client" / "credentials.json").read_bytes())
    ports = ("--namesrv-port", "0", "--port", "0")
    with (
        OurProcess(root / "servers", "serve", *ports, "--store", str(root / "store"), "--secure", str(made)) as servers,
        JavaClient(root / "java", flags=(*SMALL, *tls_client(str(made / "client" / "ca.pem")))) as client,
    ):
        java = client.signed_by(Login(credentials["access_key"], credentials["secret_key"]))
        assert "success" in java.mqadmin("updateTopic", "-n", servers.namesrv, "-b", servers.broker, "-t", "made")
        (sent,) = java.send(servers.namesrv, numbered("made", range(1)))
        assert sent["status"] == "SEND_OK"
        assert "check signature failed" in client.mqadmin("topicRoute", "-n", servers.namesrv, "-t", "made")
        client.kill()
