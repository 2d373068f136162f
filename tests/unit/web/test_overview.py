"""*Overview* over a real cluster."""

from sprocketmq import Message, Producer


async def test_brokers_roles_and_rates_are_shown(cluster, visitor):
    shown = (await visitor.get("/api/overview")).json()
    (broker,) = shown["cluster"]["brokers"]
    assert (broker["name"], broker["id"], broker["role"], broker["problem"]) == ("broker-a", 0, "ASYNC_MASTER", "")
    assert broker["address"] == cluster.brokers[0]
    assert 0 < broker["disk_used"] < 1
    assert broker["disk_free"] <= broker["disk_total"]
    assert set(shown["history"]) == {broker["address"]}


async def test_samples_come_as_events(cluster, visitor):
    async with Producer("pg", namesrv=cluster.namesrv) as producer:
        await producer.send(Message("t", b"body"))
    async with visitor.events("/api/live") as events:
        async for name, view in events:
            assert name == "cluster"
            if view["brokers"][0]["in_total"]:
                break
