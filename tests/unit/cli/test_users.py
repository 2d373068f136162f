"""``user`` and ``acl``: at the brokers of a cluster, and in a file."""

import contextlib
import json
import re
import shlex
import shutil
import stat

import pytest

from sprocketmq.cli import users
from sprocketmq.cli.user_places import FileUsers
from sprocketmq.client.credentials import read_credentials
from sprocketmq.embedded import LocalCluster
from sprocketmq.security.directory import SecureDirectory, create
from sprocketmq.security.tables import AccessTables
from sprocketmq.security.user_file import create_users_file, read_users_file
from sprocketmq.testing import wait_until


@pytest.fixture
def files(tmp_path):
    create(tmp_path / "secure")
    return SecureDirectory(tmp_path / "secure")


@pytest.fixture
def in_file(command, files):
    """Return a function that runs a command on a file of users."""

    def run(*arguments):
        return command(*arguments, "--users-file", files.users)

    return run


def test_a_user_is_created_with_a_secret_that_only_its_file_has(in_file, files, tmp_path):
    code, out, err = in_file("user", "create", "shop", "--out", tmp_path / "shop")
    assert (code, err) == (0, "")
    assert out == f"{files.users}: user shop created\nthe credentials of shop are in {tmp_path / 'shop'}\n"
    path = tmp_path / "shop" / "credentials.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    credentials = read_credentials(path)
    user = read_users_file(files.users).users["shop"]
    assert (credentials.access_key, (credentials.secret_key,)) == ("shop", user.secrets)
    assert (user.is_super, len(credentials.secret_key.reveal())) == (False, 43)
    assert (tmp_path / "shop" / "ca.pem").read_bytes() == files.authority.read_bytes()


def test_a_secret_is_shown_only_on_request(in_file, files):
    code, out, err = in_file("user", "create", "shop")
    assert (code, out) == (2, "")
    assert "say where the secret goes: --out DIR" in err
    assert "shop" not in read_users_file(files.users).users
    code, out, _ = in_file("user", "create", "shop", "--show")
    (secret,) = re.findall(r"secret: (\S+)", out)
    assert read_users_file(files.users).users["shop"].secrets[0].reveal() == secret
    code, out, _ = in_file("user", "create", "boss", "--admin", "--show", "--json")
    assert (json.loads(out)["type"], len(json.loads(out)["secret_key"])) == ("Super", 43)
    assert read_users_file(files.users).users["boss"].is_super


def test_a_user_that_exists_keeps_its_secret(in_file, files, tmp_path):
    assert in_file("user", "create", "shop", "--out", tmp_path / "a")[0] == 0
    before = files.users.read_bytes()
    code, _, err = in_file("user", "create", "shop", "--out", tmp_path / "b")
    assert code == 2
    assert "`sprocketmq user update shop --new-secret`" in err
    assert files.users.read_bytes() == before
    assert not (tmp_path / "b" / "credentials.json").exists()
    assert in_file("user", "create", "other", "--out", tmp_path / "a")[0] == 2  # the file there is another user's
    assert "other" not in read_users_file(files.users).users


def test_a_secret_of_a_file_is_taken_when_it_is_long_enough(in_file, files, tmp_path):
    path = tmp_path / "secret"
    path.write_text("12345678\n")
    path.chmod(0o600)
    code, _, err = in_file("user", "create", "shop", "--secret-file", path)
    assert (code, "a secret of 8 characters can be guessed" in err) == (2, True)
    path.write_text("twelve and some more characters\n")
    assert in_file("user", "create", "shop", "--secret-file", path)[0] == 0
    assert read_users_file(files.users).users["shop"].secrets[0].reveal() == "twelve and some more characters"
    path.chmod(0o644)
    code, _, err = in_file("user", "create", "other", "--secret-file", path)
    assert (code, "chmod 600" in err) == (2, True)


def test_two_secrets_are_valid_while_programs_change_over(in_file, files, tmp_path):
    in_file("user", "create", "shop", "--out", tmp_path / "old")
    assert in_file("user", "update", "shop", "--new-secret", "--keep-previous", "--out", tmp_path / "new")[0] == 0
    both = [read_credentials(tmp_path / name / "credentials.json").secret_key for name in ("new", "old")]
    assert list(read_users_file(files.users).users["shop"].secrets) == both
    assert in_file("user", "update", "shop", "--new-secret", "--out", tmp_path / "last")[0] == 0
    assert len(read_users_file(files.users).users["shop"].secrets) == 1


def test_users_are_locked_out_promoted_and_deleted(in_file, files):
    in_file("user", "create", "shop", "--show")
    assert in_file("user", "update", "shop", "--disable", "--admin")[0] == 0
    user = read_users_file(files.users).users["shop"]
    assert (user.enabled, user.is_super) == (False, True)
    assert in_file("user", "update", "shop", "--enable", "--no-admin")[0] == 0
    code, out, _ = in_file("user", "list")
    assert code == 0
    assert [line.split("\t") for line in out.splitlines()] == [
        ["user", "type", "status", "where"],
        ["admin", "Super", "enable", "all"],
        ["inner", "Super", "enable", "all"],
        ["shop", "Normal", "enable", "all"],
    ]
    assert in_file("user", "delete", "shop")[0] == 0
    code, _, err = in_file("user", "delete", "shop")
    assert (code, err) == (2, "sprocketmq: there is no user 'shop' (users there: admin, inner)\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("user", "update", "admin"), "say what to change"),
        (("user", "update", "admin", "--disable", "--show"), "go with --new-secret"),
        (("user", "update", "admin", "--disable", "--keep-previous"), "--keep-previous goes with --new-secret"),
        (("user", "create", "two words", "--show"), "the user name 'two words' is not valid"),
        (("acl", "grant", "admin", "--actions", "Pub"), "say on what: --topic, --group, --cluster, or --resource TYPE:NAME"),
        (("acl", "grant", "admin", "--actions", "Pub", "--topic", ""), "names nothing"),
        (("acl", "grant", "admin", "--actions", "", "--topic", "t"), "no known action"),
        (("acl", "grant", "admin", "--actions", "Pub,Subscribe", "--topic", "t"), "action 'Subscribe' is not known; did you mean Sub?"),
        (("acl", "grant", "admin", "--actions", "xyz", "--topic", "t"), "use one of All, Pub, Sub"),
        (
            ("acl", "grant", "admin", "--actions", "Pub", "--resource", "Topics:t"),
            "resource type 'Topics' is not known; did you mean Topic?",
        ),
        (
            ("acl", "grant", "admin", "--actions", "Pub", "--topic", "t", "--from", "10.0.0.0/99"),
            "source address '10.0.0.0/99' is not valid",
        ),
        (("acl", "revoke", "admin"), "say on what"),
        (("acl", "revoke", "admin", "--all", "--topic", "t"), "--all takes every right away"),
        (("acl", "revoke", "admin", "--topic", "t"), "has no such rights"),
    ],
)
def test_what_makes_no_sense_is_refused(in_file, files, arguments, words):
    before = files.users.read_bytes()
    code, _, err = in_file(*arguments)
    assert (code, words in err) == (2, True), err
    assert files.users.read_bytes() == before


def test_the_last_administrator_stays(in_file, files):
    assert in_file("user", "delete", "inner")[0] == 0
    code, _, err = in_file("user", "delete", "admin")
    assert (code, "last enabled Super user" in err) == (1, True)
    assert "admin" in read_users_file(files.users).users


def rights(out):
    return [line.split("\t")[:5] for line in out.splitlines()[1:]]


def test_rights_are_granted_added_to_and_revoked(in_file, files):
    in_file("user", "create", "shop", "--show")
    code, out, err = in_file("acl", "grant", "shop", "--topic", "orders*", "--group", "g", "--actions", "pub", "--from", "10.0.0.0/8")
    assert (code, err) == (0, "")
    assert out == f"{files.users}: shop may Pub on Topic:orders* from 10.0.0.0/8; shop may Pub on Group:g from 10.0.0.0/8\n"
    in_file("acl", "grant", "shop", "--resource", "topic:orders*", "--actions", "Sub,Get", "--from", "10.0.0.0/8")
    in_file("acl", "grant", "shop", "--topic", "secret", "--actions", "All", "--deny")
    code, out, _ = in_file("acl", "list", "shop")
    assert (code, rights(out)) == (
        0,
        [
            ["shop", "Group:g", "Pub", "10.0.0.0/8", "Allow"],
            ["shop", "Topic:orders*", "Pub,Sub,Get", "10.0.0.0/8", "Allow"],
            ["shop", "Topic:secret", "All", "anywhere", "Deny"],
        ],
    )
    code, out, _ = in_file("acl", "list", "--json")
    assert (json.loads(out)[0]["resource"], json.loads(out)[0]["actions"]) == ("Group:g", ["Pub"])
    code, out, _ = in_file("acl", "revoke", "shop", "--topic", "orders*")
    assert (code, out) == (0, f"{files.users}: shop has no entry for Topic:orders* any more\n")
    assert len(rights(in_file("acl", "list", "shop")[1])) == 2
    assert in_file("acl", "revoke", "shop", "--all")[0] == 0
    assert rights(in_file("acl", "list", "shop")[1]) == []


def test_rights_of_nobody_are_refused(in_file):
    code, _, err = in_file("acl", "grant", "nobody", "--topic", "t", "--actions", "Pub")
    assert (code, "User:nobody is not exist" in err) == (1, True)


def test_a_file_that_is_none_is_explained(command, tmp_path):
    code, _, err = command("user", "list", "--users-file", tmp_path / "users.json")
    assert (code, "does not exist" in err) == (1, True)


# --- brokers that run ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secured():
    """Two brokers, which share a file of users."""
    with LocalCluster(secure=True, brokers=2) as cluster:
        yield cluster


@pytest.fixture
def at_brokers(command, secured, monkeypatch):
    """Return a function that runs a command as the administrator, unless it names other credentials."""
    monkeypatch.setenv("NAMESRV_ADDR", secured.namesrv)
    monkeypatch.setenv("SPROCKETMQ_SECURE", str(secured.secure))
    return command


def test_a_user_may_do_what_is_granted_until_it_is_revoked(at_brokers, secured, tmp_path):
    lines = tmp_path / "lines"
    lines.write_text("one\ntwo\n")
    send = ("produce", "orders", "--file", lines, "--secure", tmp_path / "shop")
    assert at_brokers("topic", "create", "orders")[0] == 0
    code, out, err = at_brokers("user", "create", "shop", "--out", tmp_path / "shop")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "broker-a: user shop created",
        "broker-b: user shop exists already, and keeps its secret",
        f"the credentials of shop are in {tmp_path / 'shop'}",
    ]
    assert "no permission to access Topic:orders" in at_brokers(*send)[2]
    code, out, err = at_brokers("acl", "grant", "shop", "--topic", "ord*", "--actions", "Pub")
    assert (code, err, out.splitlines()) == (0, "", [f"broker-{x}: shop may Pub on Topic:ord*" for x in "ab"])
    wait_until(lambda: at_brokers(*send)[0] == 0)
    code, out, _ = at_brokers("acl", "list", "shop")
    assert out.splitlines()[1].split("\t") == ["shop", "Topic:ord*", "Pub", "anywhere", "Allow", "all"]
    assert at_brokers("acl", "revoke", "shop", "--topic", "ord*")[:2] == (
        0,
        "broker-a: shop has no entry for Topic:ord* any more\nbroker-b: shop has no such entry\n",
    )
    wait_until(lambda: at_brokers(*send)[0] == 1)
    assert at_brokers("user", "update", "shop", "--admin")[0] == 0
    wait_until(lambda: at_brokers(*send)[0] == 0)
    assert at_brokers("user", "update", "shop", "--disable")[0] == 0
    wait_until(lambda: "check signature failed" in at_brokers(*send)[2])
    code, out, _ = at_brokers("user", "list", "--json")
    places = ["broker-a", "broker-b", f"namesrv {secured.namesrv}"]
    shown = {one["username"]: one for one in json.loads(out)}
    assert shown["shop"] == {"username": "shop", "type": "Super", "status": "disable", "places": places}
    assert "secret" not in out
    assert at_brokers("user", "delete", "shop")[0] == 0
    wait_until(lambda: at_brokers(*send)[0] == 1)


def test_another_secret_ends_the_one_before(at_brokers, tmp_path):
    def codes(*names):
        return [at_brokers("topic", "list", "--secure", tmp_path / name)[0] for name in names]

    assert at_brokers("user", "create", "boss", "--admin", "--out", tmp_path / "old")[0] == 0
    wait_until(lambda: at_brokers("topic", "list", "--secure", tmp_path / "old")[0] == 0)
    assert at_brokers("user", "update", "boss", "--new-secret", "--keep-previous", "--out", tmp_path / "new")[0] == 0
    wait_until(lambda: codes("old", "new") == [0, 0])
    repeated = ("user", "update", "boss", "--new-secret", "--secret-file", tmp_path / "new" / "credentials.json")
    assert at_brokers(*repeated)[0] == 0
    wait_until(lambda: codes("old", "new") == [1, 0])


def test_a_broker_that_does_not_answer_is_named_and_the_rest_is_done(command, files, tmp_path, monkeypatch):
    @contextlib.contextmanager
    def two_places(*_):
        yield [FileUsers(files.users), FileUsers(tmp_path / "gone.json")]

    monkeypatch.setattr(users, "places", two_places)
    code, out, err = command("user", "create", "shop", "--out", tmp_path / "shop")
    assert (code, f"{files.users}: user shop created" in out) == (1, True)
    assert err.startswith(f"sprocketmq: {tmp_path / 'gone.json'}: the file of users")
    again = ("--secret-file", tmp_path / "shop" / "credentials.json")
    assert shlex.join(map(str, again)) in out
    create_users_file(tmp_path / "gone.json", AccessTables())
    code, out, err = command("user", "create", "shop", *again, "--json")
    assert (code, [place["text"] for place in json.loads(out)["places"]]) == (
        0,
        ["user shop exists already, and keeps its secret", "user shop created"],
    )
    both = [read_users_file(path).users["shop"].secrets for path in (files.users, tmp_path / "gone.json")]
    assert both[0] == both[1]
    code, out, _ = command("user", "list")
    assert out.splitlines()[1].split("\t") == ["admin", "Super", "enable", str(files.users)]


def test_a_nameserver_with_a_file_of_its_own_gets_users_too(serving, command, files, tmp_path):
    shutil.copytree(files.root, tmp_path / "other")
    namesrv = serving("namesrv", "--port", "0", "--store", str(tmp_path / "names"), "--secure", str(files.root)).address["namesrv"]
    serving("broker", "--port", "0", "--namesrv", namesrv, "--store", str(tmp_path / "mq"), "--secure", str(tmp_path / "other"))
    where = ("--namesrv", namesrv, "--secure", files.client)
    lines = tmp_path / "lines"
    lines.write_text("one\n")
    code, out, err = command("user", "create", "shop", "--out", tmp_path / "shop", *where)
    assert (code, err, out.splitlines()[0]) == (0, "", "broker-a: user shop created")
    assert command("acl", "grant", "shop", "--topic", "orders", "--actions", "Pub", *where)[0] == 0
    assert command("produce", "orders", "--file", lines, "--namesrv", namesrv, "--secure", tmp_path / "shop")[0] == 0
    secrets = [read_users_file(root / "users.json").users["shop"].secrets for root in (files.root, tmp_path / "other")]
    assert secrets[0] == secrets[1]
    assert command("user", "delete", "shop", *where)[0] == 0
    assert "shop" not in read_users_file(files.users).users


def test_brokers_without_users_say_so(cli):
    done = cli("user", "list")
    assert done.code == 1
    assert done.err.startswith("sprocketmq: broker-a: ")
