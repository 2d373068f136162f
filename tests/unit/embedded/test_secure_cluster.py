"""``LocalCluster(secure=True)``: TLS and access control for tests."""

import pytest

from sprocketmq import Message, sync
from sprocketmq.embedded import LocalCluster
from sprocketmq.errors import AuthenticationFailed, ClientClosed, SprocketError
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


def test_a_cluster_is_not_secured_unless_asked_for():
    with LocalCluster() as mq:
        assert mq.secure is None
        send_one(mq, secure=mq.secure)
