"""A reader over a cluster that is not there: brokers answer what a test says, in the words of any version."""

import asyncio

from sprocketmq.clock import ManualClock
from sprocketmq.errors import BrokerError, TopicNotFound
from sprocketmq.protocol.bodies import BrokerData, ClusterInfo
from sprocketmq.web.api.reader import ClusterReader


class FakeAdmin:
    """An AdminClient whose brokers answer by functions of the address; what has no function is refused, as by an older broker."""

    def __init__(self, *brokers, **answers):
        self.brokers_there = brokers
        self.answers = answers
        self.asked = []

    async def cluster(self):
        table = {name: BrokerData("DefaultCluster", name, {0: f"{name}:10911"}) for name in self.brokers_there}
        return ClusterInfo(table, {"DefaultCluster": list(self.brokers_there)})

    def __getattr__(self, name):
        async def answer(*arguments, **options):
            self.asked.append((name, *arguments))
            await asyncio.sleep(0)
            given = self.answers.get(name)
            if given is None:
                raise BrokerError(3, f" request type {name} not supported", address=str(arguments[:1]))
            found = given(*arguments, **options) if callable(given) else given
            if isinstance(found, Exception):
                raise found
            if found is HANGS:
                await asyncio.Event().wait()
            return found

        return answer


HANGS = object()


def reader_over(*brokers, timeout_s=0.05, **answers):
    """Return a ClusterReader and its FakeAdmin."""
    clock = ManualClock()
    admin = FakeAdmin(*brokers, **answers)
    return ClusterReader(admin, timeout_s=timeout_s, clock=clock), admin, clock


def by_broker(**answers):
    """Return a function that answers by the broker's name (with ``_`` for ``-``)."""

    def answer(address, *_):
        return answers[address.partition(":")[0].replace("-", "_")]

    return answer


def no_topic(address, topic):
    return TopicNotFound(topic)
