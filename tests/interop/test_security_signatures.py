"""Signatures of requests are those of Apache's Java client, whatever the fields and the body."""

from __future__ import annotations

import base64
import json
import random

import pytest
from tests.interop.apache import JavaClient, Login

from sprocketmq import Credentials

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

REQUESTS = 2000
NAMES = ("a", "b", "topic", "Topic", "AccessKeyX", "Zone", "_sys", "queueId", "ns", "z", "é", "名", "\U0001f680", "\uff21", "")
PIECES = ("", "0", "TopicA", "%RETRY%group", "KEYS\x01k1\x02", "标签", "\U0001f680 é", "\t\n", "\0", '"\\', "x" * 300)


def random_request(rng: random.Random) -> tuple[dict[str, str], bytes]:
    fields = {name: "".join(rng.choices(PIECES, k=rng.randrange(3))) for name in rng.sample(NAMES, rng.randrange(len(NAMES)))}
    return fields, rng.randbytes(rng.choice((0, 1, 100, 5000)))


@pytest.mark.parametrize("token", [None, "a-token"], ids=["without token", "with token"])
def test_signatures_of_random_requests_are_the_java_clients(java: JavaClient, token: str | None) -> None:
    rng = random.Random(2013)
    login = Login("alicé", "s" * rng.randrange(1, 200) + "é")
    credentials = Credentials(login.access_key, login.secret_key, token)
    requests = [random_request(rng) for _ in range(REQUESTS)]
    described = [{"code": 310, "fields": fields, "body": base64.b64encode(body).decode()} for fields, body in requests]
    theirs = java.signed_by(login).call("sign", requests=described, security_token=token)
    for (fields, body), signed in zip(requests, theirs, strict=True):
        assert credentials.sign(fields, body) == signed
        text = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
        assert json.loads(credentials.sign_json(text, body)) == signed
        if token is None:
            assert login.sign(fields, body) == signed or not all(map(str.isascii, fields)), "the tests' own signature"


def test_half_a_surrogate_pair_is_signed_as_java_does(java: JavaClient) -> None:
    fields = {"a": "x\ud83dy", "b": "\ude80"}
    (signed,) = java.signed_by(Login("alice", "s3cret")).call("sign", requests=[{"code": 310, "fields": fields}])
    assert Credentials("alice", "s3cret").sign(fields)["Signature"] == signed["Signature"]
