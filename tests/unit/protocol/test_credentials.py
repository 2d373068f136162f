"""Signatures equal those of Apache's Java client, and no secret shows anywhere."""

import base64
import copy
import hashlib
import hmac
import json
import pickle
import zipfile
from pathlib import Path

import pytest

from sprocketmq.errors import ConfigError
from sprocketmq.protocol.credentials import Credentials, Secret, SigningKey, signature
from sprocketmq.protocol.frame import FrameBuffer

FRAMES = Path(__file__).parents[2] / "fixtures" / "frames" / "frames.zip"
RECORDED = Credentials("fxAccessKey", "fxSecretKey1234", "fxToken")
SECRET = "s3cret-that-must-not-show"


def test_the_signature_covers_values_in_the_order_of_their_names_and_then_the_body():
    ext = {"i": "KEYS\x01k1\x02", "e": "3", "b": "TopicA", "a": "PG", "n": "broker-a"}
    signed = Credentials("alice", "s3cret").sign(ext, "héllo".encode())
    assert signed["Signature"] == "RpGVF05a18AX/lvtS96iy0Pu+Ic="
    assert list(signed) == [*ext, "AccessKey", "Signature"]


def test_a_request_without_fields_or_body_is_signed_by_its_login_alone():
    assert Credentials("alice", "s3cret", "tok").sign({})["Signature"] == "NnXoFO/VyjqSJMiE39q8h6x2s9I="


@pytest.mark.parametrize("layout", ["json", "bin"])
def test_a_recorded_request_of_the_java_client_has_our_signature(layout):
    with zipfile.ZipFile(FRAMES) as archive:
        (command,) = FrameBuffer().feed(archive.read(f"send-v2-acl.{layout}.request.bin"))
    theirs = command.ext["Signature"]
    unsigned = {name: value for name, value in command.ext.items() if name not in ("AccessKey", "SecurityToken", "Signature")}
    body = bytes(command.body)
    assert RECORDED.sign(unsigned, body)["Signature"] == theirs
    assert signature(b"fxSecretKey1234", command.ext, body) == theirs, "a Signature among the fields is left out"


@pytest.mark.parametrize("ext", [{}, {"topic": 'wert "ä" \U0001f600', "A": "1", "b": ""}])
@pytest.mark.parametrize("token", [None, "to\\ken"])
def test_fields_as_json_text_are_signed_like_a_map(ext, token):
    credentials = Credentials('al"ice', SECRET, token)
    text = json.dumps(ext).encode()
    assert json.loads(credentials.sign_json(text, b"body")) == credentials.sign(ext, b"body")


def test_a_body_in_pieces_is_signed_like_its_whole():
    key = SigningKey(b"k")
    whole = key.signature({"a": "1"}, b"one two three")
    assert key.signature({"a": "1"}, [b"one ", memoryview(b"two "), b"three"]) == whole
    assert key.signature({"a": "1"}, memoryview(b"one two three")) == whole


@pytest.mark.parametrize("length", [1, 63, 64, 65, 200])
def test_secrets_of_every_length_are_keys_of_hmac(length):
    secret = bytes(range(length))
    expected = base64.b64encode(hmac.digest(secret, b"vbody", "sha1")).decode()
    assert signature(secret, {"k": "v"}, b"body") == expected
    assert hashlib.sha1(secret).digest() not in expected.encode()


def test_names_are_ordered_by_utf16_units_as_in_java():
    # U+FF5E is one unit, 0xFF5E; U+1F600 begins with the unit 0xD83D, which is less.
    ext = {"\uff5e": "second", "\U0001f600": "first", "A": "0", "a": "1"}
    assert signature(b"k", ext) == base64.b64encode(hmac.digest(b"k", b"01firstsecond", "sha1")).decode()


def test_what_no_encoding_can_write_is_signed_as_java_writes_it():
    assert signature(b"k", {"a": "x\ud800"}) == signature(b"k", {"a": "x?"})


def test_an_old_signature_is_replaced():
    credentials = Credentials("alice", SECRET)
    once = credentials.sign({"a": "1"})
    assert credentials.sign(once) == once


@pytest.mark.parametrize("show", [repr, str, "{}".format, "%s".__mod__, lambda value: repr([value]), lambda value: f"{value!r:>50}"])
def test_no_text_of_credentials_has_the_secret(show):
    credentials = Credentials("alice", SECRET, "token-" + SECRET)
    for value in (credentials, credentials.secret_key, Secret(SECRET)):
        assert SECRET not in show(value)
    assert "alice" in show(credentials)
    assert repr(Secret(SECRET)) == "***"


@pytest.mark.parametrize("value", [Secret(SECRET), Credentials("alice", SECRET)], ids=["secret", "credentials"])
@pytest.mark.parametrize("take", [pickle.dumps, copy.copy, copy.deepcopy])
def test_credentials_are_neither_pickled_nor_copied(value, take):
    with pytest.raises(TypeError, match="cannot be pickled") as raised:
        take(value)
    assert SECRET not in str(raised.value)


def test_credentials_are_compared_by_value():
    one = Credentials("alice", SECRET)
    assert one == Credentials("alice", Secret(SECRET))
    assert hash(one) == hash(Credentials("alice", SECRET))
    assert one != Credentials("alice", SECRET, "token")
    assert one != Credentials("alice", "another")
    assert one != Credentials("bob", SECRET)
    assert one != "alice"
    assert Secret("a") != "a"


def test_credentials_cannot_be_changed():
    with pytest.raises(AttributeError):
        Credentials("alice", SECRET).access_key = "bob"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("", SECRET), "access_key must be a text that is not empty"),
        (("alice", ""), "secret_key must be a text that is not empty"),
        (("alice", None), "secret_key must be a text"),
        (("alice", SECRET + "\n"), "secret_key has white space"),
        ((" alice", SECRET), "access_key has white space"),
        (("alice", SECRET, ""), "security_token must be a text"),
        (("al\x00ice", SECRET), "access_key has white space or a control character"),
    ],
)
def test_what_cannot_be_credentials_is_refused_without_showing_it(arguments, named):
    with pytest.raises(ConfigError, match=named) as raised:
        Credentials(*arguments)
    assert SECRET not in str(raised.value)
