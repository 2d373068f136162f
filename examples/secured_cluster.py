"""TLS and access control: a user who may send to the topics of the shop, and to no others."""

from sprocketmq import Message, TlsConfig, sync
from sprocketmq.embedded import LocalCluster
from sprocketmq.errors import AuthenticationFailed, AuthorizationFailed

with LocalCluster(secure=True) as mq:
    shop = mq.create_user("shop", {"Topic:shop_*": "Pub"})  # a directory with its credentials
    with sync.Producer("shop", namesrv=mq.namesrv, secure=shop) as producer:
        print("stored:", producer.send(Message("shop_orders", b"o1")).msg_id)
        try:
            producer.send(Message("salaries", b"s1"))
        except AuthorizationFailed as refusal:
            print("refused:", refusal.remark)

    try:
        with sync.Producer("nobody", namesrv=mq.namesrv, tls=TlsConfig(ca_file=shop / "ca.pem")) as producer:
            producer.send(Message("shop_orders", b"o2"))
    except AuthenticationFailed as refusal:
        print("refused:", refusal.remark)
