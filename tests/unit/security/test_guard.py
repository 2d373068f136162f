"""The guard, request by request: who is let in, what the others are told, and what the log has about it."""

import asyncio
import gc
import json
import logging
import statistics
import time
import tracemalloc

import pytest

from sprocketmq.errors import ConfigError
from sprocketmq.protocol.codes import FLAG_ONEWAY
from sprocketmq.protocol.command import Command, decode_command, encode_head, to_ext
from sprocketmq.protocol.credentials import Credentials, Secret
from sprocketmq.protocol.headers import SendMessageV2
from sprocketmq.security import guard as guard_module
from sprocketmq.security.config import SecurityConfig
from sprocketmq.security.guard import CHECK_FAILED, MAX_DECISIONS, REFUSED, UNREADABLE, SecurityGuard
from sprocketmq.security.login_limits import PROMPT
from sprocketmq.security.policies import Action, Context, PolicyType, policy_entry
from sprocketmq.security.resources import ResourceType
from sprocketmq.security.tables import AccessTables
from sprocketmq.security.user_file import change_users_file, create_users_file
from sprocketmq.security.users import User, UserStatus, UserType

SECRETS = {name: f"the secret of {name} in these tests" for name in ("admin", "app", "old", "off", "inner")}
TOPIC = {"b": "t"}


class Conn:
    """What a guard uses of a connection."""

    def __init__(self, peer="10.1.2.3:50000"):
        self.peer = peer
        self.user = None
        self.authenticated_at = 0.0
        self.closed = False
        self.answers = []

    def respond(self, command, code, *, ext=None, remark=None, body=b""):
        if not command.flag & FLAG_ONEWAY and not self.closed:
            self.answers.append((command.opaque, int(code), remark))

    def close(self, reason):
        self.closed = True


class Time:
    now = 1000.0

    def __call__(self):
        return self.now


def signed(name, code, ext=None, body=b"", *, secret=None, **more):
    fields = Credentials(name, secret or SECRETS.get(name, "no user has this secret")).sign(ext or {}, body)
    return Command(code, ext=dict(fields), body=body, **more)


@pytest.fixture
def users_file(tmp_path):
    tables = AccessTables().create_user(User("admin", (Secret(SECRETS["admin"]),), UserType.SUPER))
    tables = tables.create_user(User("app", (Secret(SECRETS["app"]), Secret(SECRETS["old"]))))
    tables = tables.create_user(User("off", (Secret(SECRETS["off"]),), UserType.SUPER, UserStatus.DISABLE))
    entries = [policy_entry("Topic:t*", ["Pub", "Sub"], "Allow"), policy_entry("Topic:tight", ["Pub"], "Allow", ["192.168.0.0/16"])]
    entries.append(policy_entry("Group:g", ["Sub"], "Allow"))
    create_users_file(tmp_path / "users.json", tables.put_entries("app", PolicyType.CUSTOM, entries))
    return tmp_path / "users.json"


@pytest.fixture
def make(users_file):
    def make(*, inner=None, clock=None, changed=lambda _: None, **settings):
        config = SecurityConfig(users_file=users_file, inner_credentials=inner, **settings)
        made = SecurityGuard(config, name="broker", cluster="c1", changed=changed, time=clock or Time())
        made.open()
        return made

    return make


@pytest.fixture
def guard(make):
    return make()


def ask(guard, command, conn=None):
    """Return what the peer is told, None when the request is handled."""
    conn = conn or Conn()
    before = len(conn.answers)
    return None if guard.admits(conn, command) else conn.answers[before:][0][1:] if len(conn.answers) > before else ()


# --- authentication ---


def test_a_signed_request_is_admitted_and_names_its_user(guard):
    conn = Conn()
    assert guard.admits(conn, signed("app", 310, TOPIC, b"body"))
    assert (conn.user, conn.authenticated_at, conn.answers) == ("app", 1000.0, [])


def test_both_secrets_of_a_user_are_valid(guard):
    assert ask(guard, signed("app", 310, TOPIC, secret=SECRETS["old"])) is None


def test_everybody_else_gets_one_answer(guard):
    wrong_body = signed("app", 310, TOPIC, b"body")
    wrong_body.body = b"bodz"
    wrong_field = signed("app", 310, TOPIC)
    wrong_field.ext["b"] = "u"
    more = signed("app", 310, TOPIC)
    more.ext["x"] = "more"
    unsigned = signed("app", 310, TOPIC)
    del unsigned.ext["Signature"]
    empty = signed("app", 310, TOPIC)
    empty.ext["Signature"] = ""
    strange = signed("app", 310, TOPIC)
    strange.ext["Signature"] = "ü\ud800" * 9
    commands = [
        Command(310, ext=dict(TOPIC)),
        Command(310),
        unsigned,
        empty,
        strange,
        wrong_body,
        wrong_field,
        more,
        signed("app", 310, TOPIC, secret="another secret of somebody"),
        signed("ghost", 310, TOPIC),
        signed("App", 310, TOPIC, secret=SECRETS["app"]),
        signed("off", 310, TOPIC),
        signed("rocketmq2", 310, TOPIC, secret="12345678"),
    ]
    for command in commands:
        assert ask(guard, command, Conn(f"10.1.1.{commands.index(command)}:1")) == (16, CHECK_FAILED)


def test_fields_that_cannot_be_read_are_refused_as_a_wrong_signature(guard):
    command = decode_command(encode_head(310, opaque=1, ext=b'{"AccessKey":{}}')[4:])
    assert ask(guard, command) == (16, CHECK_FAILED)


def test_of_a_field_that_stands_twice_the_handler_reads_the_one_that_was_checked(guard):
    """Else a request could be admitted for one topic and handled for another."""
    values = SendMessageV2("pg", "t", 0, 1700000000000)
    fields = json.dumps(dict(signed("app", 310, to_ext(values)).ext))
    command = decode_command(encode_head(310, opaque=1, ext=('{"b":"u",' + fields[1:]).encode())[4:])
    assert ask(guard, command) is None
    assert command.header(SendMessageV2).topic == "t"
    command = decode_command(encode_head(310, opaque=1, ext=(fields[:-1] + ',"b":"u"}').encode())[4:])
    assert ask(guard, command) == (16, CHECK_FAILED)


@pytest.mark.parametrize(("version", "admitted"), [(399, True), (1, True), (400, False), (513, False)])
def test_clients_up_to_4_9_3_do_not_sign_the_field_of_unique_key_queries(guard, version, admitted):
    command = signed("app", 12, {"topic": "t"}, version=version)
    command.ext["_UNIQUE_KEY_QUERY"] = "true"
    assert ask(guard, command) == (None if admitted else (16, CHECK_FAILED))


def test_a_one_way_request_is_refused_without_an_answer(guard):
    assert ask(guard, signed("ghost", 310, TOPIC, flag=FLAG_ONEWAY)) == ()


def test_a_closed_connection_admits_nothing(guard):
    conn = Conn()
    conn.closed = True
    assert not guard.admits(conn, signed("app", 310, TOPIC))


def test_a_refusal_costs_the_same_work_whoever_was_named(guard, monkeypatch):
    """Two signatures and two comparisons of equal lengths for an unknown user, a user with one secret, one with two, a disabled one."""
    ask(guard, signed("app", 310, TOPIC))  # the accounts are known
    ask(guard, signed("admin", 310, TOPIC))
    ask(guard, signed("off", 310, TOPIC))
    signatures, compared = [], []
    real = guard_module.SigningKey.signature
    compare = guard_module.hmac.compare_digest

    def signature(key, fields, body=b""):
        signatures.append(key)
        return real(key, fields, body)

    def compare_digest(one, other):
        compared.append((len(one), len(other)))
        return compare(one, other)

    monkeypatch.setattr(guard_module.SigningKey, "signature", signature)
    monkeypatch.setattr(guard_module.hmac, "compare_digest", compare_digest)
    for name in ("ghost", "admin", "app", "off"):
        command = signed(name, 310, TOPIC, secret="another secret of somebody")
        signatures.clear()
        compared.clear()
        assert ask(guard, command, Conn(f"{name}:1")) == (16, CHECK_FAILED)
        assert (len(signatures), compared) == (2, [(28, 28), (28, 28)]), name


@pytest.mark.long
def test_the_time_of_a_refusal_does_not_tell_where_the_signature_differs(guard):
    right = signed("admin", 310, TOPIC).ext["Signature"]
    first, last = ("B" if right[0] == "A" else "A") + right[1:], right[:-2] + ("B" if right[-2] == "A" else "A") + "="
    times = {first: [], last: []}
    command, conn = signed("admin", 310, TOPIC), Conn()
    for _ in range(20_000):
        for given, taken in times.items():
            command.ext["Signature"] = given
            begun = time.perf_counter_ns()
            guard.refusal_of(conn, command)
            taken.append(time.perf_counter_ns() - begun)
    one, other = (statistics.median(taken) for taken in times.values())
    assert abs(one - other) < 0.05 * max(one, other)


# --- authorisation ---


@pytest.mark.parametrize(
    ("command", "remark"),
    [
        (("app", 310, {"b": "u"}), "User:app has no permission to access Topic:u from 10.1.2.3, no matched policies."),
        (("app", 310, {"b": "%RETRY%h"}), "User:app has no permission to access Group:h from 10.1.2.3, no matched policies."),
        (("app", 26), "User:app has no permission to access Cluster:c1 from 10.1.2.3, no matched policies."),
        (("app", 310), REFUSED),
        (("app", 47), REFUSED),
        (("app", 9999), REFUSED),
        (("app", 34, {}, b"{"), UNREADABLE),
    ],
)
def test_what_no_policy_allows_is_refused(guard, command, remark):
    assert ask(guard, signed(*command)) == (16, remark)


def test_a_deny_says_so(guard, users_file, make):
    change_users_file(users_file, lambda old: old.put_entries("app", PolicyType.CUSTOM, [policy_entry("Topic:t", ["Pub"], "Deny")]))
    remark = "User:app has no permission to access Topic:t from 10.1.2.3, the decision is deny."
    assert ask(make(), signed("app", 310, TOPIC)) == (16, remark)


def test_a_super_user_may_do_everything(guard):
    for code in (26, 47, 9999, 1008, 3001):
        assert ask(guard, signed("admin", code)) is None


def test_source_addresses_are_those_of_the_peer(guard):
    command = signed("app", 310, {"b": "tight"})
    assert ask(guard, command, Conn("192.168.1.1:1")) is None
    assert ask(guard, command, Conn("[::ffff:192.168.1.1]:1")) is None
    # The literal entry does not apply from elsewhere, so the one of the prefix decides.
    assert ask(guard, command, Conn("10.1.2.3:1")) is None


def test_with_authentication_alone_every_user_may_do_everything(make):
    guard = make(authorization_enabled=False)
    assert ask(guard, signed("app", 26)) is None
    assert ask(guard, signed("ghost", 26)) == (16, CHECK_FAILED)


def test_an_error_in_the_guard_lets_nobody_in(guard, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(guard_module, "contexts_of", broken)
    assert ask(guard, signed("app", 310, TOPIC)) == (16, REFUSED)


def test_decisions_are_kept_and_bounded_and_forgotten_after_a_change(guard):
    conn = Conn()
    for number in range(MAX_DECISIONS + 10):
        guard.admits(conn, signed("app", 310, {"b": f"t{number}"}))
    assert 0 < len(guard._decisions) <= MAX_DECISIONS


def test_a_decision_is_made_once(guard, monkeypatch):
    decided = []
    decide = guard_module.PolicyIndex.decide

    def counted(index, context, source):
        decided.append(context)
        return decide(index, context, source)

    monkeypatch.setattr(guard_module.PolicyIndex, "decide", counted)
    conn = Conn()
    assert all(guard.admits(conn, signed("app", 310, TOPIC, b"%d" % number)) for number in range(100))
    assert len(decided) == 1


async def test_a_change_of_policies_holds_at_once(guard):
    command = signed("app", 310, TOPIC)
    assert ask(guard, command) is None
    await guard.change(lambda old: old.delete_policies("app"))
    assert ask(guard, command) == (16, "User:app has no permission to access Topic:t from 10.1.2.3, no matched policies.")
    assert guard.refusal_of(Conn(), command)


async def test_a_change_of_the_file_holds_when_it_was_noticed(make, users_file):
    told = []
    guard = make(changed=told.append)
    command = signed("app", 310, TOPIC)
    assert ask(guard, command) is None
    change_users_file(users_file, lambda old: old.delete_user("app"))
    await guard.reload_if_changed()
    assert ask(guard, command) == (16, CHECK_FAILED)
    assert guard.refusal_of(Conn(), command) == CHECK_FAILED
    assert told == [{"app"}]


async def test_a_secret_that_was_replaced_is_no_longer_valid(guard):
    command = signed("app", 310, TOPIC)
    await guard.change(lambda old: old.update_user("app", secret=Secret("a new secret for the app")))
    assert ask(guard, command) == (16, CHECK_FAILED)
    assert ask(guard, signed("app", 310, TOPIC, secret="a new secret for the app")) is None


def test_a_handler_can_ask_for_more_while_it_handles_a_request(guard):
    conn, command = Conn(), signed("app", 36, {"group": "g"})
    sub = frozenset({Action.SUB})
    assert guard.admits(conn, command)
    assert guard.allows(conn, command, Context(ResourceType.TOPIC, "t1", sub))
    assert not guard.allows(conn, command, Context(ResourceType.TOPIC, "u", sub))
    assert guard.allows(conn, signed("admin", 36), Context(ResourceType.TOPIC, "u", sub))


# --- inner credentials ---


def test_the_inner_credentials_are_a_super_user_that_is_in_no_list(make):
    guard = make(inner=Credentials("inner", SECRETS["inner"]))
    assert ask(guard, signed("inner", 103)) is None
    assert "inner" not in guard.store.tables.users
    assert guard.user("inner").is_super


def test_inner_credentials_that_contradict_the_file_are_refused_at_the_start(make):
    for name in ("app", "off"):
        with pytest.raises(ConfigError, match="inner credentials"):
            make(inner=Credentials(name, SECRETS[name]))
    with pytest.raises(ConfigError, match="inner credentials"):
        make(inner=Credentials("admin", SECRETS["inner"]))
    make(inner=Credentials("admin", SECRETS["admin"]))


def test_the_replication_secret_follows_from_the_inner_credentials():
    made = [
        SecurityConfig(authentication_enabled=False, authorization_enabled=False, inner_credentials=credentials).replication_secret
        for credentials in (None, Credentials("inner", SECRETS["inner"]), Credentials("inner", SECRETS["app"]))
    ]
    assert made[0] is None
    assert len({*made}) == 3
    assert all(len(text) == 64 and SECRETS["inner"] not in text for text in made[1:])


@pytest.mark.parametrize(
    ("settings", "advice"),
    [
        ({"authentication_enabled": False, "authorization_enabled": True, "users_file": "x"}, "authentication_enabled as well"),
        ({}, "secure init"),
    ],
)
def test_settings_that_protect_nothing_are_refused(settings, advice):
    with pytest.raises(ConfigError, match=advice):
        SecurityConfig(**settings)


# --- failing often ---


async def test_a_peer_that_fails_often_is_answered_late_then_closed(make, monkeypatch):
    monkeypatch.setattr(guard_module, "DELAY_S", 0.001)
    guard, conn = make(), Conn()
    for number in range(PROMPT + 3):
        assert not guard.admits(conn, signed("ghost", 310, TOPIC, opaque=number))
    assert len(conn.answers) == PROMPT
    while len(conn.answers) < PROMPT + 3:
        await asyncio.sleep(0)
    assert {answer[1:] for answer in conn.answers} == {(16, CHECK_FAILED)}
    while not conn.closed:
        guard.admits(conn, signed("ghost", 310, TOPIC))
    # A user with the right secret is let in from there all the same.
    assert ask(guard, signed("app", 310, TOPIC), Conn()) is None


async def test_answers_that_wait_are_bounded(make, monkeypatch):
    monkeypatch.setattr("sprocketmq.security.login_limits.MAX_DELAYED", 2)
    guard = make()
    conns = [Conn(f"10.0.0.{number}:1") for number in range(4)]
    for conn in conns:
        for _ in range(PROMPT + 1):
            guard.admits(conn, signed("ghost", 310, TOPIC))
    assert [conn.closed for conn in conns] == [False, False, True, True]


def test_a_user_that_nobody_knows_a_thousand_times_fills_no_log(guard, caplog):
    caplog.set_level(logging.INFO)
    for number in range(1000):
        guard.admits(Conn(f"10.0.{number % 250}.1:1"), signed(f"ghost{number}", 310, TOPIC))
        guard.admits(Conn(), signed("app", 26))
    assert 2 <= len(caplog.records) <= 20


def test_the_log_has_who_what_from_where_and_why_and_no_secret(guard, caplog):
    unknown = signed("ghost", 310, TOPIC, b"body")
    unknown.ext["AccessKey"] = "ghost\nforged line"
    guard.admits(Conn(), unknown)
    guard.admits(Conn(), signed("app", 26))
    failed, refused = (record.getMessage() for record in caplog.records)
    assert {record.name for record in caplog.records} == {"sprocketmq.security"}
    login = 'login_refused server=broker code=310 peer=10.1.2.3:50000 user="ghost\\nforged line" reason="no user has that name"'
    assert failed == login
    request = 'request_refused server=broker code=26 peer=10.1.2.3:50000 user=app reason="no permission to access Cluster:c1 (Get)'
    assert refused.startswith(request)
    for text in (*SECRETS.values(), signed("app", 26).ext["Signature"]):
        assert text not in caplog.text


def test_a_name_in_a_request_cannot_begin_a_line_of_the_log(guard, caplog):
    guard.admits(Conn(), signed("app", 310, {"b": "x\nbroker: user admin logged in"}))
    (record,) = caplog.records
    assert r"Topic:x\nbroker: user admin logged in" in record.getMessage()
    assert "\n" not in record.getMessage()


def test_long_names_are_neither_kept_nor_logged_at_length(guard, caplog):
    def size():
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = size()
        for number in range(100):
            assert ask(guard, signed("app", 310, {"b": f"{number}" * 50_000}))[0] == 16
        assert size() - before < 1_000_000
    finally:
        tracemalloc.stop()
    assert max(len(record.getMessage()) for record in caplog.records) < 2_000
