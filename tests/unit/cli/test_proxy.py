"""``sprocketmq proxy`` and ``serve --grpc`` as processes."""

import json

import grpc
import pytest

from sprocketmq.cli.app import main
from sprocketmq.proxy.codes import Code
from sprocketmq.proxy.schema import MESSAGES, SERVICE
from sprocketmq.security import directory


def route_of(address, topic="TBW102"):
    request = MESSAGES["QueryRouteRequest"]()
    request.topic.name = topic
    with grpc.insecure_channel(address) as channel:
        method = channel.unary_unary(
            f"/{SERVICE}/QueryRoute",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=MESSAGES["QueryRouteResponse"].FromString,
        )
        return method(request, metadata=(("x-mq-client-id", "test"),), timeout=60)


def test_the_endpoint_of_a_running_cluster(serving, mq):
    process = serving("proxy", "--namesrv", mq.namesrv, "--port", "0")
    assert route_of(process.address["grpc"], "nosuch").status.code == Code.TOPIC_NOT_FOUND
    assert process.end()[0] == 0


def test_serve_has_an_endpoint_of_its_own(serving, tmp_path):
    process = serving("serve", "--port", "0", "--namesrv-port", "0", "--store", str(tmp_path), "--grpc", "0")
    assert route_of(process.address["grpc"], "nosuch").status.code == Code.TOPIC_NOT_FOUND
    assert process.end()[0] == 0


def test_a_secured_cluster_has_users(serving, tmp_path):
    secure = tmp_path / "secure"
    directory.create(secure)
    process = serving(
        "serve", "--port", "0", "--namesrv-port", "0", "--store", str(tmp_path / "store"), "--secure", str(secure), "--grpc", "0"
    )
    assert route_of(process.address["grpc"]).status.code == Code.UNAUTHORIZED
    assert process.end()[0] == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--host", "0.0.0.0"], "lets other machines in"),
        (["--tls-cert", "a.pem"], "--tls-cert and --tls-key belong together"),
        (["--tls-only"], "--tls-only needs a certificate"),
        (["--users", "nosuch.json"], "nosuch.json"),
        (["--advertise", "nowhere"], "nowhere"),
    ],
)
def test_command_lines_that_cannot_be(mq, capsys, tmp_path, monkeypatch, options, text):
    monkeypatch.chdir(tmp_path)
    assert main(["proxy", "--namesrv", mq.namesrv, "--port", "0", *options]) == 2
    assert text in capsys.readouterr().err


def test_users_in_a_file(serving, mq, tmp_path):
    path = tmp_path / "users.json"
    path.write_text(json.dumps([{"access_key": "alice", "secret_key": "secret-of-alice"}]))
    path.chmod(0o600)
    process = serving("proxy", "--namesrv", mq.namesrv, "--port", "0", "--users", str(path))
    assert route_of(process.address["grpc"]).status.code == Code.UNAUTHORIZED
    assert process.end()[0] == 0
