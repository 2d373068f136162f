"""The file of users and policies: what it may hold, who may read it, and how it changes under a running server."""

import asyncio
import json
import os
import stat
import threading

import pytest

from sprocketmq.errors import ConfigError, SecretFileExposed
from sprocketmq.events import quoted
from sprocketmq.protocol.credentials import Secret
from sprocketmq.security.policies import PolicyType, policy_entry
from sprocketmq.security.tables import AccessTables, ChangeRefused
from sprocketmq.security.user_file import UserStore, change_users_file, create_users_file, decode_tables, encode_tables, read_users_file
from sprocketmq.security.users import User, UserStatus, UserType, new_secret

SECRET = "a secret of the test's own"
ADMIN = User("admin", (Secret(SECRET),), UserType.SUPER)
APP = User("app", (Secret(SECRET + " app"), Secret(SECRET + " old")))


def tables():
    made = AccessTables().create_user(ADMIN).create_user(APP)
    return made.put_entries("app", PolicyType.CUSTOM, [policy_entry("Topic:t*", ["Pub", "Sub"], "Allow", ["10.0.0.0/8"])])


@pytest.fixture
def path(tmp_path):
    create_users_file(tmp_path / "users.json", tables())
    return tmp_path / "users.json"


def test_the_file_reads_back_what_was_written(path):
    assert read_users_file(path) == tables()


def test_the_file_has_names_and_not_numbers(path):
    tree = json.loads(path.read_text())
    assert tree["users"][0] == {"username": "admin", "secrets": [SECRET], "type": "Super", "status": "enable"}
    entry = {"resource": "Topic:t*", "actions": ["Pub", "Sub"], "source_ips": ["10.0.0.0/8"], "decision": "Allow"}
    assert tree["policies"] == [{"subject": "User:app", "type": "Custom", "entries": [entry]}]


def test_only_its_owner_may_read_the_file(path):
    change_users_file(path, lambda old: old.delete_user("app"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in path.parent.iterdir() if stat.S_IMODE(p.stat().st_mode) & 0o077] == []


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644])
def test_a_file_that_others_may_read_or_write_is_refused(path, mode):
    path.chmod(mode)
    with pytest.raises(SecretFileExposed, match="chmod 600"):
        read_users_file(path)


def test_a_missing_file_names_the_next_step(tmp_path):
    with pytest.raises(ConfigError, match="secure init"):
        read_users_file(tmp_path / "users.json")


def test_an_existing_file_is_not_written_over(path):
    with pytest.raises(ConfigError, match="exists already"):
        create_users_file(path, AccessTables())
    assert read_users_file(path) == tables()


def user_text(**members):
    return json.dumps({"users": [{"username": "u", "secrets": [SECRET], **members}]}).encode()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "JSON"),
        (b"[1]", "object"),
        (b'{"users": [{"username": "u"}]}', "secrets"),
        (user_text(secrets=[]), "0 secrets"),
        (user_text(secrets=[SECRET] * 3), "3 secrets"),
        (user_text(secrets=["12345678"]), "8 characters"),
        (user_text(username=" "), "blank"),
        (user_text(username="a b"), "not valid"),
        (user_text(username="a\nb"), "not valid"),
        (user_text(type="Root"), "user type"),
        (user_text(status="maybe"), "user status"),
        (b'{"policies": [{"subject": "User:ghost", "entries": []}]}', "not exist"),
        (b'{"policies": [{"subject": "Role:x", "entries": []}]}', "User:NAME"),
    ],
)
def test_a_text_that_is_not_valid_is_refused_with_the_reason(text, reason):
    with pytest.raises(ConfigError, match=reason):
        decode_tables(text)


def test_a_policy_that_names_nothing_is_refused():
    text = json.loads(encode_tables(tables()))
    text["policies"][0]["entries"][0]["resource"] = "Topic:"
    with pytest.raises(ConfigError, match="names nothing"):
        decode_tables(json.dumps(text).encode())


def test_no_error_about_the_file_quotes_a_secret(path):
    text = path.read_text()
    for damaged in (text[:-20], text.replace('"admin"', "7"), text.replace('"Super"', '"Sup"')):
        path.write_text(damaged)
        with pytest.raises(ConfigError) as caught:
            read_users_file(path)
        assert SECRET not in str(caught.value)


def test_no_repr_of_users_shows_a_secret():
    for shown in (repr(ADMIN), repr(tables()), str(tables().users)):
        assert SECRET not in shown


def test_a_generated_secret_has_32_random_bytes():
    made = {new_secret().reveal() for _ in range(100)}
    assert len(made) == 100
    assert all(len(text) == 43 and text.isascii() for text in made)


# --- changes ---


def test_the_last_super_user_stays():
    for change in (
        lambda old: old.delete_user("admin"),
        lambda old: old.update_user("admin", status=UserStatus.DISABLE),
        lambda old: old.update_user("admin", type=UserType.NORMAL),
    ):
        with pytest.raises(ChangeRefused, match="last enabled Super user"):
            change(tables())
    second = tables().update_user("app", type=UserType.SUPER)
    assert "admin" not in second.delete_user("admin").users


def test_a_new_secret_replaces_the_old_ones_or_stands_beside_the_newest():
    new = Secret("another secret of the test's own")
    assert tables().update_user("app", secret=new).users["app"].secrets == (new,)
    both = tables().update_user("app", secret=new, keep_previous=True)
    assert both.users["app"].secrets == (new, APP.secrets[0])
    assert both.update_user("app", secret=new, keep_previous=True) == both


def test_deleting_a_user_deletes_its_policies():
    assert tables().delete_user("app").policies == {}


def test_an_entry_for_the_same_resource_replaces_the_old_one():
    changed = tables().put_entries("app", PolicyType.CUSTOM, [policy_entry("topic:t*", ["Get"], "Deny")])
    assert [str(entry.decision) for entry in changed.policies["app"][0].entries] == ["Deny"]


def test_policies_are_deleted_by_resource_by_type_or_all():
    more = tables().put_entries(
        "app", PolicyType.DEFAULT, [policy_entry("*", ["Get"], "Allow"), policy_entry("Topic:t*", ["Get"], "Allow")]
    )
    assert [policy.type for policy in more.delete_policies("app", PolicyType.DEFAULT).policies["app"]] == [PolicyType.CUSTOM]
    by_resource = more.delete_policies("app", resource="Topic:t*").policies["app"]
    assert [entry.resource for policy in by_resource for entry in policy.entries] == ["*"]
    assert more.delete_policies("app").policies == {}
    for arguments in (("ghost",), ("admin",), ("app", None, "Topic:u")):
        with pytest.raises(ChangeRefused):
            more.delete_policies(*arguments)


def test_changes_of_several_processes_are_made_one_after_the_other(path):
    """Threads stand for processes: the lock is one of an open file, which every change opens anew."""

    def create(number):
        change_users_file(path, lambda old: old.create_user(User(f"user-{number}", (new_secret(),))))

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_users_file(path).users) == 10


def test_a_change_that_fails_leaves_the_file_and_nothing_else(path, monkeypatch):
    before = path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        change_users_file(path, lambda old: old.delete_user("app"))
    assert path.read_bytes() == before
    assert sorted(p.name for p in path.parent.iterdir()) == [".users.json.lock", "users.json"]


# --- a running server ---


def test_a_file_without_an_enabled_super_user_does_not_open(path):
    text = path.read_text().replace("Super", "Normal")
    path.write_text(text)
    with pytest.raises(ConfigError, match="no enabled Super user"):
        UserStore(path).open()


async def test_a_replaced_file_is_taken_over_and_names_who_changed(path, said):
    changes = []
    store = UserStore(path, changes.append)
    store.open()
    assert not store.is_stale
    change_users_file(path, lambda old: old.update_user("app", status=UserStatus.DISABLE))
    assert store.is_stale
    await store.reload()
    assert not store.is_stale
    assert not store.tables.users["app"].enabled
    assert changes == [{"app"}]
    assert said("users_reloaded") == [f"users_reloaded path={quoted(path)} users=app"]


async def test_a_file_that_cannot_be_used_is_logged_once_and_changes_nothing(path, said):
    store = UserStore(path)
    store.open()
    good = path.read_bytes()
    path.write_bytes(b"{")
    await store.reload()
    assert store.tables == tables()
    assert not store.is_stale
    (line,) = said("users_reload_failed")
    assert line.startswith(f"users_reload_failed path={quoted(path)} reason=")
    path.write_bytes(good)
    assert store.is_stale
    await store.reload()
    assert store.tables == tables()


async def test_changes_of_one_server_are_made_one_after_the_other(path):
    store = UserStore(path)
    store.open()
    users = [User(f"user-{number}", (new_secret(),)) for number in range(5)]
    await asyncio.gather(*(store.change(lambda old, user=user: old.create_user(user)) for user in users))
    assert store.tables.users.keys() == {"admin", "app", *(user.username for user in users)}
    assert read_users_file(path) == store.tables


async def test_a_change_that_another_server_has_made_is_taken_over_when_it_is_refused(path):
    store, other = UserStore(path), UserStore(path)
    store.open()
    other.open()
    user = User("new", (new_secret(),))
    await other.change(lambda old: old.create_user(user))
    with pytest.raises(ChangeRefused):
        await store.change(lambda old: old.create_user(user))
    assert store.tables.users["new"] == user


async def test_a_file_that_is_gone_leaves_the_users_as_they_were(path):
    store = UserStore(path)
    store.open()
    path.unlink()
    assert not store.is_stale
    with pytest.raises(ConfigError):
        await store.change(lambda old: old.delete_user("app"))
    assert store.tables == tables()
