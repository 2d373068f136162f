"""THE table from request codes to contexts, walked code by code."""

import msgspec
import pytest

from sprocketmq.errors import ProtocolError
from sprocketmq.protocol.bodies import (
    CheckClientConfig,
    ConsumerData,
    HeartbeatData,
    LockBatchRequest,
    ProducerData,
    QueueRef,
    SubscriptionData,
    SubscriptionGroupConfig,
)
from sprocketmq.protocol.codes import RequestCode
from sprocketmq.protocol.command import Command
from sprocketmq.security.requirements import REQUIREMENTS, MissingResource, contexts_of

CLUSTER = "c1"
T, G = {"topic": "t"}, {"consumerGroup": "g"}
GROUP_AND_TOPIC = {"group": "g", "topic": "t"}


def needs(code, ext=None, body=b""):
    """Return the contexts of a request as text: ``Topic:t Get|Sub``."""
    command = Command(code, ext=dict(ext or {}), body=body)
    contexts = contexts_of(command, CLUSTER)
    return None if contexts is None else [f"{context.resource} {'|'.join(sorted(context.actions))}" for context in contexts]


def heartbeat(*consumers, producers=()):
    data = [ConsumerData(group, subscription_data_set=[SubscriptionData(topic, "*") for topic in topics]) for group, topics in consumers]
    return HeartbeatData("client", [ProducerData(name) for name in producers], data).encode()


def acked(group, topic):
    return {"c": group, "t": topic, "so": 0, "q": 0, "pt": 1, "b": "AQ=="}


def locks(group, *topics):
    return LockBatchRequest(group, "client", [QueueRef(topic, "broker-a", 0) for topic in topics]).encode()


def json(tree):
    return msgspec.json.encode(tree)


CASES = [
    (10, T, b"", ["Topic:t Pub"]),
    (10, {"topic": "%RETRY%g"}, b"", ["Group:g Sub"]),
    (310, {"b": "t"}, b"", ["Topic:t Pub"]),
    (310, {"b": "%RETRY%g"}, b"", ["Group:g Sub"]),
    (310, {"b": "%DLQ%g"}, b"", ["Topic:%DLQ%g Pub"]),
    (320, {"b": "t"}, b"", ["Topic:t Pub"]),
    (324, T, b"", ["Topic:t Pub"]),
    (324, {"topic": "c1_REPLY_TOPIC"}, b"", []),
    (325, {"b": "c1_REPLY_TOPIC"}, b"", []),
    (325, {"b": "c2_REPLY_TOPIC"}, b"", ["Topic:c2_REPLY_TOPIC Pub"]),
    (36, {"group": "g"}, b"", ["Group:g Sub"]),
    (37, T, b"", ["Topic:t Pub"]),
    (370, T, b"", ["Topic:t Pub"]),
    (11, T | G, b"", ["Topic:t Sub", "Group:g Sub"]),
    (11, {"topic": "%RETRY%other"} | G, b"", ["Group:other Sub", "Group:g Sub"]),
    (361, T | G, b"", ["Topic:t Sub", "Group:g Sub"]),
    (34, {}, heartbeat(("g", ["t", "%RETRY%g"]), ("h", [])), ["Group:g Sub", "Topic:t Sub", "Group:g Sub", "Group:h Sub"]),
    (34, {}, heartbeat(producers=["anyone"]), []),
    (35, G, b"", ["Group:g Sub"]),
    (35, {"producerGroup": "p"}, b"", []),
    (38, G, b"", ["Group:g Get|Sub"]),
    (14, T | G, b"", ["Topic:t Get|Sub", "Group:g Get|Sub"]),
    (15, T | G, b"", ["Topic:t Sub|Update", "Group:g Sub|Update"]),
    (41, {}, locks("g", "t", "t", "u"), ["Group:g Sub", "Topic:t Sub", "Topic:u Sub"]),
    (42, {}, locks("g", "%RETRY%g"), ["Group:g Sub", "Group:g Sub"]),
    (46, {}, CheckClientConfig("c", "g", SubscriptionData("t", "*")).encode(), ["Group:g Sub", "Topic:t Sub"]),
    (400, {}, json({"topic": "t", "consumerGroup": "g"}), ["Group:g Sub", "Topic:t Sub"]),
    *((code, T | G, b"", ["Topic:t Sub", "Group:g Sub"]) for code in (309, *range(200050, 200055), 200056, 200070, 200071, 200072)),
    (200151, {}, json({"acks": [acked("g", "t"), acked("g", "u")]}), ["Group:g Sub", "Topic:t Sub", "Topic:u Sub"]),
    (200055, T | G, b"", ["Group:g Get", "Topic:t Get"]),
    (12, T, b"", ["Topic:t Get|Sub"]),
    *((code, T, b"", ["Topic:t Get|Sub"]) for code in (29, 30, 31, 32)),
    (33, T, b"", ["Topic:t Get"]),
    (33, {}, b"", ["Topic:* Get"]),
    (105, T, b"", ["Topic:t Get|Pub|Sub"]),
    (105, {"topic": "TBW102"}, b"", []),
    (105, {"topic": "c1_REPLY_TOPIC"}, b"", []),
    (105, {"topic": "%RETRY%g"}, b"", ["Group:g Get|Sub"]),
    *((code, T, b"", ["Topic:t Get"]) for code in (202, 300, 351, 354)),
    (203, G, b"", ["Group:g Get|Sub"]),
    (307, G, b"", ["Group:g Get"]),
    *((code, {"group": "g"}, b"", ["Group:g Get"]) for code in (343, 352)),
    *((code, GROUP_AND_TOPIC, b"", ["Group:g Get", "Topic:t Get"]) for code in (223, 303, 345)),
    (321, T | G, b"", ["Group:g Get", "Topic:t Get"]),
    (321, T, b"", ["Group:* Get", "Topic:t Get"]),
    (208, T | G, b"", ["Group:g Get", "Topic:t Get"]),
    (208, G, b"", ["Group:g Get", "Topic:* Get"]),
    (208, G | {"topicList": "t;u"}, b"", ["Group:g Get", "Topic:* Get", "Topic:t Get", "Topic:u Get"]),
    (308, T | {"compareGroup": "g", "filterGroups": "h,i"}, b"", ["Group:h Get", "Group:i Get", "Group:g Get", "Topic:t Get"]),
    (17, T, b"", ["Topic:t Create"]),
    (18, {}, json({"topicConfigList": [{"topicName": "t"}, {"topicName": "u"}]}), ["Topic:t Create", "Topic:u Create"]),
    (215, T, b"", ["Topic:t Delete"]),
    (323, T, b"", ["Topic:t Update"]),
    (200, {}, SubscriptionGroupConfig("g").encode(), ["Group:g Create"]),
    (225, {}, json({"groupConfigList": [{"groupName": "g"}, {"groupName": "h"}]}), ["Group:g Create", "Group:h Create"]),
    (207, {"groupName": "g"}, b"", ["Group:g Delete"]),
    *((code, GROUP_AND_TOPIC, b"", ["Group:g Update", "Topic:t Update"]) for code in (222, 353)),
    (314, {"srcGroup": "f", "destGroup": "g", "topic": "t"}, b"", ["Group:g Update", "Topic:t Update"]),
    (314, {"srcGroup": "f", "destGroup": "g"}, b"", ["Group:g Update", "Topic:* Update"]),
    *((code, {"clusterName": "c2"}, b"", ["Cluster:c2 Get"]) for code in (322, 901, 1012)),
    *((code, {"clusterName": "c2"}, b"", ["Cluster:c2 Update"]) for code in (103, 104, 216, 903, 904, 1002, 1003, 1011, 1013)),
    (216, {}, b"", ["Cluster:* Update"]),
    *((code, {}, b"", ["Cluster:c1 Get"]) for code in (101, 204, 219, 315, 317, 328, 355, 1004, 3004, 3005, 3009, 3010)),
    *((code, {}, b"", ["Cluster:c1 Get"]) for code in (21, 26, 28, 43, 45, 60, 61, 201, 305, 402, 907, 1007, 2003)),
    *((code, {}, b"", ["Cluster:c1 Get|List"]) for code in (106, 206, 224, 304, 311, 312, 313)),
    *((code, {}, b"", ["Cluster:c1 Update"]) for code in (100, 102, 205, 217, 327, 902, 905, 906, 908, 1001, 1008)),
    *((code, {}, b"", ["Cluster:c1 Update"]) for code in (3001, 3002, 3003, 3006, 3007, 3008)),
    *((code, {}, b"", ["Cluster:c1 Update"]) for code in (25, 27, 209, 210, 306, 316, 318, 319, 329, 401, 513, 2001, 2002, 2004, 5001)),
]


@pytest.mark.parametrize(("code", "ext", "body", "wanted"), CASES, ids=[f"{case[0]}-{number}" for number, case in enumerate(CASES)])
def test_each_code_needs_what_the_table_says(code, ext, body, wanted):
    assert needs(code, ext, body) == wanted


def test_every_code_of_the_table_has_a_case():
    assert {case[0] for case in CASES} == set(REQUIREMENTS)


# Requests that servers send to clients: as requests to a server they mean nothing, and only a Super user gets the answer that says so.
TO_CLIENTS = {
    RequestCode.CHECK_TRANSACTION_STATE,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
}


def test_every_code_that_sprocketmq_answers_has_a_rule():
    assert set(RequestCode) - TO_CLIENTS - set(REQUIREMENTS) == set()


@pytest.mark.parametrize("code", [-1, 0, 9, 13, 39, 40, 47, 50, 51, 52, 53, 54, 55, 220, 221, 318_000, 326, 999, 200074, 200079, 1 << 31])
def test_a_code_that_is_not_in_the_table_has_no_rule(code):
    assert needs(code) is None


# --- what a request leaves out ---


NAMED = [case for case in CASES if case[1] and case[3] and not case[2]]
OPTIONAL = {
    (33, "topic"),
    (208, "topic"),
    (208, "topicList"),
    (314, "topic"),
    (314, "srcGroup"),
    (321, "consumerGroup"),
    (308, "filterGroups"),
    (35, "consumerGroup"),
}


@pytest.mark.parametrize(
    ("code", "ext", "field"),
    [(code, ext, field) for code, ext, _, _ in NAMED for field in ext if (code, field) not in OPTIONAL and field != "clusterName"],
)
@pytest.mark.parametrize("instead", [None, "", " "])
def test_a_request_that_names_no_resource_is_refused(code, ext, field, instead):
    left = {name: value for name, value in ext.items() if name != field}
    if instead is not None:
        left[field] = instead
    with pytest.raises(MissingResource):
        needs(code, left)


@pytest.mark.parametrize("code", sorted(REQUIREMENTS))
def test_a_request_without_anything_is_refused_or_needs_the_whole_cluster_or_everything(code):
    try:
        contexts = needs(code)
    except (MissingResource, ProtocolError):
        return
    if code == 35:
        return  # leaving no group
    assert contexts
    assert all(context.startswith(("Cluster:", "Topic:* ", "Group:* ")) for context in contexts)


@pytest.mark.parametrize("code", [34, 41, 42, 46, 18, 200, 225, 400])
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b"null", b"\xff", b'{"mqSet":7}'])
def test_a_body_that_cannot_be_read_is_refused(code, body):
    with pytest.raises((ProtocolError, MissingResource)):
        needs(code, body=body)
