"""The tables of docs/guide/compatibility.md say what the code does."""

import re
from pathlib import Path

import pytest

from sprocketmq.broker.attributes import ATTRIBUTES
from sprocketmq.broker.groups import LITE_ATTRIBUTES
from sprocketmq.broker.topics import TopicRefused
from sprocketmq.namesrv import NameServer, NameServerConfig
from sprocketmq.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from sprocketmq.protocol.codes import RequestCode
from sprocketmq.protocol.headers import CreateTopic
from sprocketmq.protocol.properties import RESERVED

TEXT = (Path(__file__).parents[3] / "docs/guide/compatibility.md").read_text(encoding="utf-8")
SECTION = TEXT[TEXT.index("## Accepted and refused") : TEXT.index("## When you move")]
# The codes brokers ask clients with; the table names 307 and 309 with the broker as well, which passes them on.
ASKED_OF_CLIENTS = {39, 40, 220, 221, 307, 309, 326}


def rows(heading):
    part = SECTION[SECTION.index(f"### {heading}\n") :]
    part = part[: part.find("\n### ", 1)]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in part.splitlines() if line.startswith("| ")]


def codes(who):
    return [int(code) for row in rows("Requests") if row[-1].rstrip(" |") == who for code in row[0].split()]


def named(heading):
    return {name for row in rows(heading) for name in re.findall(r"`([^`]+)`", row[0])}


async def test_every_request_code_is_in_the_table_of_who_answers_it(broker):
    nameserver = NameServer(NameServerConfig(port=0))
    for who, handled in (("broker", broker._handlers), ("nameserver", nameserver._handlers), ("client", ASKED_OF_CLIENTS)):
        listed = codes(who)
        assert len(listed) == len(set(listed))
        assert set(listed) == set(map(int, handled)), who
    assert {*codes("broker"), *codes("nameserver"), *codes("client")} == set(map(int, RequestCode))


async def test_every_code_that_is_listed_as_refused_is_refused(broker, ask, namesrv, connect):
    refused = codes("refused")
    assert {513, 5001} <= set(refused)
    assert not set(refused) & {*codes("broker"), *codes("nameserver"), *codes("client")}
    at_nameserver = await connect(namesrv)
    for code in refused:
        for asked in (ask, at_nameserver):
            answer = await asked(code)
            assert (answer.code, answer.remark) == (3, f" request type {code} not supported")


def test_every_field_of_topics_and_groups_is_in_the_tables():
    assert set(TopicConfig.__struct_encode_fields__) | set(ATTRIBUTES) == named("Topics")
    assert set(SubscriptionGroupConfig.__struct_encode_fields__) == named("Groups")


def test_every_value_of_an_attribute_is_done_or_refused_as_listed(broker_topics):
    listed = {row[0].strip("`"): row[1] for row in rows("Topics")}
    for key, attribute in ATTRIBUTES.items():
        for value in attribute.choices or ("-1", "1"):
            try:
                broker_topics.create_or_update(CreateTopic(f"{key}-{value}".replace(".", "_"), 1, 1, 6, attributes=f"+{key}={value}"))
                done = True
            except TopicRefused:
                done = False
            before = listed[key].partition(f"`{value}`" if attribute.choices or done else "others")[2]
            assert before, (key, value)
            says = re.search("refused|done|told", before)
            assert says is not None
            assert (says[0] != "refused") is done, (key, value)


@pytest.fixture
def broker_topics():
    from sprocketmq.broker.topics import TopicTable

    return TopicTable(cluster_name="c", broker_name="b", auto_create=True)


async def test_every_attribute_of_groups_about_lite_topics_is_refused(ask):
    for name in LITE_ATTRIBUTES:
        answer = await ask(200, {}, SubscriptionGroupConfig("billing", attributes={f"+{name}": "1"}).encode())
        assert answer.code == 1
        assert name in answer.remark


def test_properties_with_a_meaning_for_brokers_are_in_the_table():
    listed = named("Properties of a message")
    assert listed - {"_SYS_MSG_PRIORITY_", "__LITE_TOPIC"} <= RESERVED
    for row in rows("Properties of a message")[1:]:
        for cell in row[1:]:
            assert re.search("done|refused|replaced|stored|the same", cell), row


# What a property says when its message is to be more than an ordinary one.
VALUES = {"TRAN_MSG": "true", "TIMER_DELIVER_MS": "{soon}"}
PROPERTIES = [
    (name, *(int(found[1]) if (found := re.search(r"refused, (\d+)", cell)) else 0 for cell in row[1:]))
    for row in rows("Properties of a message")[1:]
    for name in re.findall(r"`([^`]+)`", row[0]) or ["one_of_all_others"]
]


@pytest.mark.parametrize(("name", "alone", "in_batch"), PROPERTIES, ids=lambda value: value if isinstance(value, str) else "")
@pytest.mark.parametrize("topic", ["orders", "batches"])
async def test_every_property_is_done_or_refused_as_listed(broker, ask, clock, topic, name, alone, in_batch):
    broker.topics.create_internal("batches", 4, attributes={"queue.type": "BatchCQ"})
    text = f"{name}\x01{VALUES.get(name, '1').format(soon=clock.time_ms() + 60_000)}\x02"
    outer = "UNIQ_KEY\x017F000001516DE40737036832F5A00002\x02"
    answers = [await ask.send(topic, properties=text)]
    for on_batch, on_member in ((text, ""), (outer + text, ""), ("", text), (outer, text)):
        answers.append(await ask.send_batch(topic, [b"one", b"two"], properties=on_batch, each=on_member.encode()))
    assert [answer.code for answer in answers] == [alone, *[in_batch] * 4]
