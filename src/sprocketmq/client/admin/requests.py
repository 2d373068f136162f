"""Requests to nameservers and brokers, which all administration shares."""

from collections.abc import Mapping

from sprocketmq.client.consume.offsets import OffsetRequests
from sprocketmq.client.instance import response_error
from sprocketmq.client.lifecycle import Client
from sprocketmq.client.routes import MASTER_ID, Route
from sprocketmq.errors import ConfigError, NoMaster, TopicNotFound
from sprocketmq.protocol.bodies import ClusterInfo
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.names import check_topic


class AdminRequests(Client):
    """Requests of an AdminClient; its docstring lists what they raise."""

    _timeout_s: float
    _offsets: OffsetRequests

    async def cluster(self) -> ClusterInfo:
        """Return all brokers and clusters."""
        return ClusterInfo.decode((await self._ask_namesrv(RequestCode.GET_BROKER_CLUSTER_INFO)).body)

    async def _route(self, topic: str) -> Route:
        self._instance.check()
        check_topic(topic)
        return await self._instance.fresh_route(topic)

    async def _masters(self, cluster: str | None, broker: str | None) -> dict[str, str]:
        """Return the masters' addresses by broker name, of one cluster or one broker when given.

        Raises ConfigError when there is no such broker, NoMaster when none has a master now.
        """
        return await self._brokers(cluster, broker, only_masters=True)

    async def _readers(self, cluster: str | None = None) -> dict[str, str]:
        """Return the addresses to read from by broker name: the master's, or a slave's of a broker that has no master now."""
        return await self._brokers(cluster, None, only_masters=False)

    async def _brokers(self, cluster: str | None, broker: str | None, *, only_masters: bool) -> dict[str, str]:
        info = await self.cluster()
        names = set(info.broker_addr_table) if cluster is None else set(info.cluster_addr_table.get(cluster, ()))
        if broker is not None:
            names &= {broker}
        found: dict[str, str] = {}
        for name, data in sorted(info.broker_addr_table.items()):
            lowest = min(data.broker_addrs, default=None)
            if name in names and lowest is not None and (lowest == MASTER_ID or not only_masters):
                found[name] = data.broker_addrs[lowest]
        if not found:
            if registered := sorted(name for name, data in info.broker_addr_table.items() if name in names and data.broker_addrs):
                raise NoMaster(registered)
            wanted = f"broker {broker!r}" if broker else f"cluster {cluster!r}" if cluster else "broker"
            known = ", ".join(sorted(info.cluster_addr_table)) or "none"
            raise ConfigError(f"no {wanted} is registered at {';'.join(self._instance.namesrv.addresses)} (clusters there: {known})")
        return found

    async def _ask(self, address: str, code: RequestCode, ext: Mapping[str, str], body: bytes = b"") -> Command:
        return await self._instance.ask(address, code, ext=ext, body=body, timeout_s=self._timeout_s)

    async def _ask_namesrv(self, code: RequestCode, ext: Mapping[str, str] | None = None, topic: str = "") -> Command:
        self._instance.check()
        response = await self._instance.namesrv.request(code, ext=ext)
        addresses = ";".join(self._instance.namesrv.addresses)
        if topic and response.code == ResponseCode.TOPIC_NOT_EXIST:
            await self._instance.check_brokers(topic)
            raise TopicNotFound(topic, addresses)
        return self._expect_success(response, addresses, topic)

    @staticmethod
    def _expect_success(response: Command, address: str, topic: str = "") -> Command:
        if response.code != ResponseCode.SUCCESS:
            raise response_error(response, address, topic)
        return response
