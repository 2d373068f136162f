from sprocketmq.client.routes import read_route
from sprocketmq.protocol.bodies import BrokerData, QueueData, TopicRoute
from sprocketmq.protocol.message import MessageQueue


def route(*queues: QueueData, brokers: dict[str, dict[int, str]], order: str | None = None) -> TopicRoute:
    return TopicRoute([BrokerData("c", name, addrs) for name, addrs in brokers.items()], list(queues), order_topic_conf=order)


BOTH = {"a": {0: "h:1", 1: "h:2"}, "b": {0: "h:3"}}


def test_queues_are_listed_by_broker_then_number():
    r = read_route("t", route(QueueData("b", 1, 1), QueueData("a", 2, 2), brokers=BOTH))
    assert r.publish_queues == (MessageQueue("t", "a", 0), MessageQueue("t", "a", 1), MessageQueue("t", "b", 0))
    assert r.subscribe_queues == r.publish_queues
    assert r.masters == {"a": "h:1", "b": "h:3"}


def test_permissions_decide_what_is_written_and_what_is_read():
    r = read_route("t", route(QueueData("a", 3, 2, perm=4), QueueData("b", 1, 2, perm=2), brokers=BOTH))
    assert [q.broker_name for q in r.subscribe_queues] == ["a"] * 3
    assert [q.broker_name for q in r.publish_queues] == ["b"] * 2


def test_a_broker_without_a_master_is_read_but_not_written():
    r = read_route("t", route(QueueData("a", 1, 1), brokers={"a": {1: "h:2"}}))
    assert r.publish_queues == ()
    assert r.masterless == ("a",)
    assert r.subscribe_queues == (MessageQueue("t", "a", 0),)
    assert r.address("a") == "h:2"


def test_a_broker_without_queues_to_write_lacks_no_master():
    brokers = {"a": {1: "h:2"}, "b": {1: "h:3"}}
    assert read_route("t", route(QueueData("a", 1, 1, perm=4), QueueData("b", 1, 0), brokers=brokers)).masterless == ()


def test_an_address_is_asked_by_id_and_falls_back_to_the_master_then_to_any():
    r = read_route("t", route(QueueData("a", 1, 1), brokers=BOTH))
    assert r.address("a", 1) == "h:2"
    assert r.address("a", 7) == "h:1"
    assert r.address("nobody") is None


def test_an_order_topic_writes_the_queues_it_lists():
    r = read_route("t", route(QueueData("a", 8, 8), brokers=BOTH, order="a:2;b:1;gone:4;nonsense"))
    assert r.publish_queues == (MessageQueue("t", "a", 0), MessageQueue("t", "a", 1), MessageQueue("t", "b", 0))


def test_a_route_made_of_the_template_has_at_most_four_queues_a_broker():
    r = read_route("new", route(QueueData("a", 8, 8, perm=7), QueueData("b", 2, 2, perm=7), brokers=BOTH), template=True)
    assert r.provisional
    assert [(q.topic, q.broker_name) for q in r.publish_queues] == [("new", "a")] * 4 + [("new", "b")] * 2
