"""What somebody can do with a signed request that they have read: replay it and cut it anew, within the rights of the user who signed it.

The signature is over the values of the fields in the order of their names, one after the other, and the body. It has no time, and neither
the code nor the names of the fields nor where a value ends are part of it. TLS keeps others from reading requests.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.fuzz.secured import ADMIN, exchange, grant, request_frame, secured_broker, write_users

from sprocketmq.broker import Broker
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.credentials import Credentials

SENDER = Credentials("sender", "the-secret-of-somebody-who-sends")
FIELDS = {
    "a": "group", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0", "i": "", "j": "0", "k": "false", "m": "false",
}  # fmt: skip
BODY = b"an order"
REFUSED = ResponseCode.NO_PERMISSION


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker with a user who may send to two topics, and an administrator."""
    policies = [grant(SENDER, "Topic:orders", "Pub", "Get"), grant(SENDER, "Topic:porders", "Pub")]
    users = write_users(tmp_path / "users.json", [SENDER], policies)
    running = secured_broker(tmp_path / "store", users)
    await running.start()
    yield running
    await running.stop()


async def answer(broker: Broker, *frames: bytes) -> Command:
    """Send frames over a connection of their own and return the last answer."""
    return (await exchange(broker.address, [*frames], least=len(frames)))[-1]


def messages(broker: Broker, topic: str) -> int:
    return sum(broker.store.max_offset(topic, queue_id) for queue_id in range(8))


async def test_a_request_can_be_replayed_from_another_connection(broker: Broker) -> None:
    """Left open by the format: a replayed send is stored again."""
    seen = request_frame(RequestCode.SEND_MESSAGE_V2, SENDER.sign(FIELDS, BODY), BODY)
    for count in (1, 2):
        assert (await answer(broker, seen)).code == ResponseCode.SUCCESS
        assert messages(broker, "orders") == count


async def test_a_replay_ends_with_the_secret(broker: Broker) -> None:
    seen = request_frame(RequestCode.SEND_MESSAGE_V2, SENDER.sign(FIELDS, BODY), BODY)
    assert (await answer(broker, seen)).code == ResponseCode.SUCCESS
    change = b'{"username":"sender","password":"the-next-secret-of-the-sender"}'
    update = request_frame(RequestCode.UPDATE_USER, ADMIN.sign({"username": "sender"}, change), change)
    assert (await answer(broker, update)).code == ResponseCode.SUCCESS
    assert (await answer(broker, seen)).code == REFUSED
    assert messages(broker, "orders") == 1


@pytest.mark.parametrize("changed", [*FIELDS, "AccessKey", "Signature", "body", "another"])
async def test_no_value_of_a_request_can_be_changed(broker: Broker, changed: str) -> None:
    signed, body = SENDER.sign(FIELDS, BODY), BODY
    if changed == "body":
        body = b"An order"
    else:
        signed[changed] = signed.get(changed, "") + "1"
    found = await answer(broker, request_frame(RequestCode.SEND_MESSAGE_V2, signed, body))
    assert (found.code, found.remark) == (REFUSED, "check signature failed.")
    assert messages(broker, "orders") == 0


async def test_values_can_be_cut_anew_but_reach_only_what_the_user_may(broker: Broker) -> None:
    """Left open by the format: "group" and "orders" are signed like "grou" and "porders"."""
    signed = SENDER.sign(FIELDS, BODY)
    recut = signed | {"a": "grou", "b": "porders"}
    assert (await answer(broker, request_frame(RequestCode.SEND_MESSAGE_V2, recut, BODY))).code == ResponseCode.SUCCESS
    assert messages(broker, "porders") == 1
    beyond = signed | {"a": "gro", "b": "uporders"}
    found = await answer(broker, request_frame(RequestCode.SEND_MESSAGE_V2, beyond, BODY))
    assert found.code == REFUSED
    assert "Topic:uporders" in (found.remark or "")
    assert "uporders" not in broker.topics


async def test_a_signature_is_valid_for_other_codes_but_not_for_other_rights(broker: Broker) -> None:
    """Left open by the format: who may ask for a queue's end and delete the topic signs the same for both."""
    fields = {"topic": "orders", "queueId": "0"}
    delete = RequestCode.DELETE_TOPIC_IN_BROKER
    assert (await answer(broker, request_frame(RequestCode.SEND_MESSAGE_V2, SENDER.sign(FIELDS, BODY), BODY))).code == ResponseCode.SUCCESS
    assert (await answer(broker, request_frame(RequestCode.GET_MAX_OFFSET, SENDER.sign(fields)))).code == ResponseCode.SUCCESS
    found = await answer(broker, request_frame(delete, SENDER.sign(fields)))
    assert (found.code, "Topic:orders" in (found.remark or "")) == (REFUSED, True)
    assert "orders" in broker.topics
    assert (await answer(broker, request_frame(delete, ADMIN.sign(fields)))).code == ResponseCode.SUCCESS
    assert "orders" not in broker.topics


async def test_requests_without_fields_have_one_signature_for_each_user(broker: Broker) -> None:
    """Left open by the format: whoever has read one may ask what the user may ask without fields."""
    seen = SENDER.sign({})
    assert seen == SENDER.sign({})
    for code in (RequestCode.GET_BROKER_CONFIG, RequestCode.GET_BROKER_RUNTIME_INFO, RequestCode.GET_ALL_TOPIC_CONFIG):
        assert (await answer(broker, request_frame(code, seen))).code == REFUSED, "the user may not"
        assert (await answer(broker, request_frame(code, ADMIN.sign({})))).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("text", ['"b":"orders","b":"uporders"', '"b":"uporders","b":"orders"'], ids=["allowed first", "allowed last"])
async def test_a_field_that_stands_twice_is_checked_as_it_is_used(broker: Broker, text: str) -> None:
    topic = text[-9:-1].strip('":')
    signed = SENDER.sign(FIELDS | {"b": topic}, BODY)
    rest = ",".join(f'"{name}":"{value}"' for name, value in signed.items() if name != "b")
    header = b'{"code":310,"opaque":1,"flag":0,"version":513,"extFields":{%s}}' % f"{rest},{text}".encode()
    found = await answer(broker, len(header).to_bytes(4, "big") + header + BODY)
    assert (found.code == ResponseCode.SUCCESS) == (topic == "orders")
    assert "uporders" not in broker.topics
    assert messages(broker, "orders") == (topic == "orders")
