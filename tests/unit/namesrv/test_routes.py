"""Route tables: who registers, who is found, who is forgotten."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sprocketmq.namesrv.routes import RegistrationRefused, RouteTables
from sprocketmq.protocol.bodies import DataVersion, QueueData, RegisterBrokerBody, TopicConfig, TopicConfigTable
from sprocketmq.protocol.headers import RegisterBroker

TOPICS = {"orders": 4, "bills": 8}


def header(name="broker-a", address="127.0.0.1:1", *, broker_id=0, cluster="c1", timeout_ms=None, acting=False):
    return RegisterBroker(
        broker_name=name,
        broker_addr=address,
        cluster_name=cluster,
        ha_server_addr="127.0.0.1:9",
        broker_id=broker_id,
        heartbeat_timeout_ms=timeout_ms,
        enable_acting_master=acting,
    )


def body(topics=None, *, version=0, state=0, perm=6):
    configs = {
        name: TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)
        for name, queues in (TOPICS if topics is None else topics).items()
    }
    return RegisterBrokerBody(TopicConfigTable(configs, DataVersion(state, 1000, version)))


@pytest.fixture
def routes():
    return RouteTables()


def register(routes, head=None, content=None, *, owner="conn", now=0.0):
    return routes.register(head or header(), content or body(), owner=owner, now=now)


def queues_of(routes, topic):
    route = routes.route(topic)
    return {} if route is None else {q.broker_name: (q.read_queue_nums, q.write_queue_nums, q.perm) for q in route.queue_datas}


def test_a_registered_broker_is_found_by_its_topics(routes):
    register(routes)
    route = routes.route("orders")
    assert [b.broker_addrs for b in route.broker_datas] == [{0: "127.0.0.1:1"}]
    assert queues_of(routes, "orders") == {"broker-a": (4, 4, 6)}
    assert routes.route("nothing") is None
    assert sorted(routes.topics()) == ["bills", "orders"]


def test_two_brokers_share_a_topic(routes):
    register(routes)
    register(routes, header("broker-b", "127.0.0.1:2"), body({"orders": 2, "own": 1}))
    assert queues_of(routes, "orders") == {"broker-a": (4, 4, 6), "broker-b": (2, 2, 6)}
    assert queues_of(routes, "own") == {"broker-b": (1, 1, 6)}


def test_an_incremental_registration_leaves_the_other_topics(routes):
    register(routes)
    register(routes, content=body({"orders": 16}, version=1))
    assert queues_of(routes, "orders") == {"broker-a": (16, 16, 6)}
    assert queues_of(routes, "bills") == {"broker-a": (8, 8, 6)}


def test_a_single_topic_from_an_unknown_broker_is_refused(routes):
    with pytest.raises(RegistrationRefused, match="register broker failed"):
        register(routes, content=body({"orders": 4}))
    assert routes.topics() == []
    assert routes.clusters().broker_addr_table == {}


def test_the_same_data_version_changes_nothing(routes):
    register(routes)
    register(routes, content=body({"orders": 99, "bills": 99}))
    assert queues_of(routes, "orders") == {"broker-a": (4, 4, 6)}


def test_a_silent_broker_expires_after_its_timeout(routes):
    register(routes, now=0.0)
    register(routes, header("broker-b", "127.0.0.1:2", timeout_ms=1000), now=0.0)
    assert routes.expire(1.0) == []
    assert [live.address for live in routes.expire(1.1)] == ["127.0.0.1:2"]
    assert routes.heard("c1", "127.0.0.1:1", 100.0)
    assert routes.expire(220.0) == []
    assert [live.address for live in routes.expire(220.1)] == ["127.0.0.1:1"]
    assert routes.route("orders") is None
    assert routes.clusters().cluster_addr_table == {}
    assert not routes.heard("c1", "127.0.0.1:1", 221.0)


def test_a_lost_connection_ends_its_broker_only(routes):
    register(routes, owner="first")
    register(routes, header("broker-b", "127.0.0.1:2"), owner="second")
    assert [live.broker_name for live in routes.drop_owner("first")] == ["broker-a"]
    assert set(queues_of(routes, "orders")) == {"broker-b"}
    assert routes.drop_owner("first") == []


def test_a_broker_that_came_back_over_a_new_connection_survives_the_end_of_the_old_one(routes):
    register(routes, owner="old")
    register(routes, owner="new")
    assert routes.drop_owner("old") == []
    assert queues_of(routes, "orders")


def test_unregistering_removes_the_broker_and_its_queues(routes):
    register(routes)
    register(routes, header("broker-b", "127.0.0.1:2"))
    routes.unregister("c1", "broker-a", 0, "127.0.0.1:1")
    assert set(queues_of(routes, "orders")) == {"broker-b"}
    assert routes.clusters().cluster_addr_table == {"c1": ["broker-b"]}
    routes.unregister("c1", "nobody", 0, "x")


def test_a_late_unregister_of_an_old_address_does_not_remove_the_new_one(routes):
    register(routes)
    register(routes, header(address="127.0.0.1:7"), body(version=1))
    routes.unregister("c1", "broker-a", 0, "127.0.0.1:1")
    assert routes.route("orders").broker_datas[0].broker_addrs == {0: "127.0.0.1:7"}


def test_a_new_address_replaces_the_old_unless_the_old_state_is_newer(routes):
    register(routes, content=body(state=5))
    register(routes, header(address="127.0.0.1:7"), body(state=4, version=9))
    assert routes.route("orders").broker_datas[0].broker_addrs == {0: "127.0.0.1:1"}
    register(routes, header(address="127.0.0.1:7"), body(state=6))
    assert routes.route("orders").broker_datas[0].broker_addrs == {0: "127.0.0.1:7"}
    assert routes.data_version("c1", "127.0.0.1:1") is None


def test_a_slave_learns_its_master_and_brings_no_queues(routes):
    assert register(routes).master_address is None
    answer = register(routes, header(address="127.0.0.1:2", broker_id=1), body({"orders": 99, "extra": 1}, version=5))
    assert (answer.master_address, answer.ha_address) == ("127.0.0.1:1", "127.0.0.1:9")
    assert queues_of(routes, "orders") == {"broker-a": (4, 4, 6)}
    assert queues_of(routes, "extra") == {}
    assert routes.route("orders").broker_datas[0].broker_addrs == {0: "127.0.0.1:1", 1: "127.0.0.1:2"}


def test_queues_stay_while_a_slave_lives(routes):
    register(routes)
    register(routes, header(address="127.0.0.1:2", broker_id=1))
    routes.unregister("c1", "broker-a", 0, "127.0.0.1:1")
    assert routes.route("orders").broker_datas[0].broker_addrs == {1: "127.0.0.1:2"}


def test_an_acting_slave_without_a_master_is_read_only(routes):
    register(routes, header(broker_id=1, acting=True))
    assert queues_of(routes, "orders") == {"broker-a": (4, 4, 4)}


def test_a_slave_that_became_master_leaves_its_old_place(routes):
    register(routes, header(broker_id=1))
    register(routes, header(broker_id=0), body(version=1))
    assert routes.route("orders").broker_datas[0].broker_addrs == {0: "127.0.0.1:1"}


def test_a_broker_that_changes_its_cluster_leaves_the_old_one(routes):
    register(routes)
    register(routes, header(cluster="c2"), body(version=1))
    assert routes.clusters().cluster_addr_table == {"c2": ["broker-a"]}


def test_write_permission_is_taken_and_given_back(routes):
    register(routes)
    register(routes, header("broker-b", "127.0.0.1:2"), body({"orders": 2, "own": 1}))
    assert routes.wipe_write_perm("broker-a") == 2
    assert {name: perm for name, (_, _, perm) in queues_of(routes, "orders").items()} == {"broker-a": 4, "broker-b": 6}
    register(routes)  # the same version: stays wiped
    assert queues_of(routes, "orders")["broker-a"][2] == 4
    assert routes.add_write_perm("broker-a") == 2
    assert queues_of(routes, "orders")["broker-a"][2] == 6
    routes.wipe_write_perm("broker-a")
    register(routes, content=body(version=1))
    assert queues_of(routes, "orders")["broker-a"][2] == 6
    assert routes.wipe_write_perm("nobody") == 0


def test_topics_are_deleted_everywhere_or_in_one_cluster(routes):
    register(routes)
    register(routes, header("broker-b", "127.0.0.1:2", cluster="c2"))
    routes.delete_topic("orders", "c2")
    assert set(queues_of(routes, "orders")) == {"broker-a"}
    routes.delete_topic("bills")
    assert routes.route("bills") is None
    routes.delete_topic("nothing", "nowhere")


def test_topics_of_a_cluster(routes):
    register(routes)
    register(routes, header("broker-b", "127.0.0.1:2", cluster="c2"), body({"own": 1, "other": 1}))
    assert sorted(routes.topics_of_cluster("c1")) == ["bills", "orders"]
    assert sorted(routes.topics_of_cluster("c2")) == ["other", "own"]
    assert routes.topics_of_cluster("nowhere") == []


def test_queues_can_be_registered_for_known_brokers(routes):
    register(routes)
    routes.register_topic("made", [QueueData("broker-a", 1, 1), QueueData("ghost", 1, 1)])
    assert queues_of(routes, "made") == {"broker-a": (1, 1, 6)}


def test_names_of_clusters_and_brokers_are_system_topics(routes):
    assert routes.system_names() == ([], None)
    register(routes)
    assert routes.system_names() == (["c1", "broker-a"], "127.0.0.1:1")


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["register", "unregister", "expire", "drop"]),
            st.sampled_from(["a", "b"]),
            st.integers(0, 2),
            st.integers(1, 3),
            st.integers(0, 3),
        ),
        max_size=30,
    )
)
def test_no_order_of_events_leaves_a_route_without_a_broker(events):
    """Every route names brokers that have an address, and every broker is in its cluster."""
    routes = RouteTables()
    now = 0.0
    for what, name, broker_id, port, version in events:
        now += 50.0
        address = f"127.0.0.1:{port}"
        if what == "register":
            try:
                register(routes, header(name, address, broker_id=broker_id), body(version=version), owner=(name, port), now=now)
            except RegistrationRefused:
                pytest.fail("a full table is never refused")
        elif what == "unregister":
            routes.unregister("c1", name, broker_id, address)
        elif what == "expire":
            routes.expire(now)
        else:
            routes.drop_owner((name, port))
        info = routes.clusters()
        assert all(broker.broker_addrs for broker in info.broker_addr_table.values())
        assert sorted(info.broker_addr_table) == sorted(info.cluster_addr_table.get("c1", []))
        for topic in routes.topics():
            route = routes.route(topic)
            assert {q.broker_name for q in route.queue_datas} == {b.broker_name for b in route.broker_datas}
