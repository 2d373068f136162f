"""``LocalCluster(secure=True)``: TLS and access control for tests."""

import pytest

from sprocketmq import Message, sync
from sprocketmq.embedded import LocalCluster
from sprocketmq.errors import AuthenticationFailed, AuthorizationFailed, ClientClosed, ConfigError, SprocketError
from sprocketmq.net.tls import TlsConfig


def send_one(cluster, **security):
    with sync.Producer("pg", namesrv=cluster.namesrv, **security) as producer:
        producer.send(Message("orders", b"o1"))


@pytest.mark.parametrize("in_process", [True, False])
def test_a_secured_cluster_takes_its_administrator_and_nobody_else(in_process):
    with LocalCluster(in_process=in_process, secure=True) as mq:
        secure = mq.secure
        send_one(mq, secure=secure)
        assert [message.body for message in mq.messages("orders")] == [b"o1"]
        mq.create_topic("payments")
        with pytest.raises(SprocketError):
            send_one(mq, tls=False, credentials=secure / "credentials.json")
        with pytest.raises(AuthenticationFailed):
            send_one(mq, tls=TlsConfig(ca_file=secure / "ca.pem"))
    assert not secure.parent.exists()
    with pytest.raises(ClientClosed):
        _ = mq.secure


def test_slaves_of_a_secured_cluster_follow():
    with LocalCluster(secure=True, replicas=1, role="SYNC_MASTER") as mq:
        send_one(mq, secure=mq.secure)
        with sync.AdminClient(namesrv=mq.namesrv, secure=mq.secure) as admin:
            states = admin.brokers()
        assert [(state.role, state.problem) for state in states] == [("SYNC_MASTER", ""), ("SLAVE", "")]
        assert states[1].following == "following"


def test_parts_of_a_secured_cluster_come_back_with_the_same_credentials(tmp_path):
    with LocalCluster(tmp_path / "mq", secure=True) as mq:
        secure = mq.secure
        send_one(mq, secure=secure)
        mq.stop_broker()
        mq.start_broker()
        mq.stop_namesrv()
        mq.start_namesrv()
        assert mq.secure == secure
        assert len(mq.messages("orders", count=1)) == 1
    with mq:  # a new start has new ones
        assert mq.secure != secure
        assert len(mq.messages("orders")) == 1


def test_a_user_may_do_what_its_rights_say_at_once():
    with LocalCluster(secure=True, brokers=2) as mq:
        mq.create_topic("orders", queues=2)
        shop = mq.create_user("shop", {"Topic:orders": "pub"})
        for _ in range(4):  # at both brokers
            send_one(mq, secure=shop)
        with pytest.raises(AuthorizationFailed), sync.PullConsumer("g", namesrv=mq.namesrv, secure=shop) as consumer:
            consumer.pull(consumer.queues("orders")[0], 0)
        billing = mq.create_user("billing", {"Topic:ord*": "Sub,Get", "Group:g": "Sub,Get"})
        with sync.PullConsumer("g", namesrv=mq.namesrv, secure=billing) as consumer:
            found = [message.body for queue in consumer.queues("orders") for message in consumer.pull(queue, 0).messages]
        assert found == [b"o1"] * 4
        mq.stop_broker("broker-b")
        mq.create_user("late")
        mq.start_broker("broker-b")
        for name, rights, words in (
            ("shop", {}, "has a user 'shop' already"),
            ("two words", {}, "is not valid"),
            ("new", {"Topics:x": "Pub"}, "resource type 'Topics' is not known"),
            ("new", {"Topic:x": "Send"}, "no known action"),
        ):
            with pytest.raises(ConfigError, match=words):
                mq.create_user(name, rights)
    with LocalCluster() as mq, pytest.raises(ConfigError, match="make it with secure=True"):
        mq.create_user("shop")


def test_a_cluster_is_not_secured_unless_asked_for():
    with LocalCluster() as mq:
        assert mq.secure is None
        send_one(mq, secure=mq.secure)
