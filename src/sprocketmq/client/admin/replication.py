"""Administration of masters and slaves: what each broker is, and how far the slaves follow."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from sprocketmq.client.admin.groups import GroupAdmin
from sprocketmq.client.routes import MASTER_ID
from sprocketmq.errors import BrokerError, RetriableError
from sprocketmq.net.tasks import all_of
from sprocketmq.protocol.bodies import EpochCache, HaConnectionInfo, HaStatus
from sprocketmq.protocol.codes import RequestCode
from sprocketmq.protocol.command import to_ext
from sprocketmq.protocol.headers import NotifyRoleChanged
from sprocketmq.protocol.settings import decode_settings

# A promotion cuts the log to whole records and dispatches it.
ROLE_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class BrokerState:
    """One registered broker. Fields that it does not report are None.

    ``role`` is ASYNC_MASTER, SYNC_MASTER or SLAVE; "" and ``problem`` set when it does not answer. ``log_end`` is the log offset where its
    commit log ends, ``epoch`` the newest epoch of the log (brokers without slaves and Apache's have none). Of a slave, ``behind_bytes`` is
    how much of its master's log it lacks, ``behind_ms`` for how long, ``in_sync`` whether its master counts it as in sync, and
    ``following`` the state of its replication ("following", "diverged", ...). Of a master, ``slaves`` are its connections.
    """

    broker_name: str
    broker_id: int
    address: str
    cluster: str
    role: str = ""
    version: str = ""
    log_end: int | None = None
    epoch: int | None = None
    following: str = ""
    behind_bytes: int | None = None
    behind_ms: int | None = None
    in_sync: bool | None = None
    in_sync_slaves: int | None = None
    slaves: Sequence[HaConnectionInfo] = field(default=())
    problem: str = ""

    @property
    def is_master(self) -> bool:
        """Whether it is registered as the master."""
        return self.broker_id == MASTER_ID


class ReplicationAdmin(GroupAdmin):
    """Masters and slaves."""

    async def ha_status(self, address: str) -> HaStatus:
        """Return the state of replication on the broker at ``address``: of a master its slaves, of a slave how it follows."""
        response = await self._ask(address, RequestCode.GET_BROKER_HA_STATUS, {})
        return HaStatus.decode(self._expect_success(response, address).body)

    async def broker_epochs(self, address: str) -> EpochCache:
        """Return the epochs of the log on the broker at ``address``. Raises BrokerError when it has none."""
        response = await self._ask(address, RequestCode.GET_BROKER_EPOCH_CACHE, {})
        return EpochCache.decode(self._expect_success(response, address).body)

    async def change_master(self, address: str, master_address: str, epoch: int, *, timeout_s: float = ROLE_TIMEOUT_S) -> None:
        """Inform the broker at ``address`` that the one at ``master_address``, itself or another, is the master from ``epoch`` on.

        Returns when it has its new role. Raises BrokerError when it refuses, such as for an epoch that is not higher than its own.
        """
        ext = to_ext(NotifyRoleChanged(epoch, master_address))
        code = RequestCode.NOTIFY_BROKER_ROLE_CHANGED
        self._expect_success(await self._instance.ask(address, code, ext=ext, timeout_s=timeout_s), address)

    async def brokers(self, broker_name: str | None = None) -> list[BrokerState]:
        """Return all registered brokers, or those of one name, by name and id; those that do not answer with their ``problem``.

        Slaves are asked before their master, so that their lag is overstated rather than understated.
        """
        info = await self.cluster()
        clusters = {name: cluster for cluster, names in info.cluster_addr_table.items() for name in names}
        registered = [
            BrokerState(name, broker_id, address, clusters.get(name, ""))
            for name, data in info.broker_addr_table.items()
            if broker_name in (None, name)
            for broker_id, address in data.broker_addrs.items()
        ]
        states = await all_of(self._ask_state(state) for state in registered if not state.is_master)
        states += await all_of(self._ask_state(state) for state in registered if state.is_master)
        return sorted(with_lags(states), key=lambda state: (state.broker_name, state.broker_id))

    async def _settings_of(self, address: str) -> dict[str, str]:
        response = await self._ask(address, RequestCode.GET_BROKER_CONFIG, {})
        return decode_settings(self._expect_success(response, address).body)

    async def _ask_state(self, state: BrokerState) -> BrokerState:
        address = state.address
        try:
            runtime = await self.broker_runtime(address)
            # Apache's brokers report their role only in their settings.
            role = runtime.get("brokerRole") or (await self._settings_of(address)).get("brokerRole", "")
        except (BrokerError, RetriableError) as e:
            return replace(state, problem=str(e))
        state = replace(
            state,
            role=role,
            version=runtime.get("brokerVersionDesc", ""),
            log_end=_number(runtime.get("commitLogMaxOffset")),
            epoch=_number(runtime.get("epoch")) or None,
            following=runtime.get("replicationState", ""),
            behind_bytes=_number(runtime.get("replicationBehindBytes")),
            behind_ms=_number(runtime.get("replicationBehindMs")),
        )
        try:
            ha = await self.ha_status(address)
        except (BrokerError, RetriableError):  # Apache's broker in some modes
            return state
        if not state.is_master:
            return state
        return replace(state, in_sync_slaves=ha.in_sync_slave_nums, slaves=tuple(ha.ha_connection_info))


def with_lags(states: Iterable[BrokerState]) -> list[BrokerState]:
    """Return the states with each slave's lag behind its master's log.

    Masters know the connections of slaves, not their ids: a slave's connection is one from its host, or from elsewhere if there is none,
    as a machine may have several addresses. Of several slaves the one with more of the log has the connection that acknowledged more.
    """
    by_name = defaultdict(list)
    for state in states:
        by_name[state.broker_name].append(state)
    found = []
    for group in by_name.values():
        master = next((state for state in group if state.is_master and not state.problem), None)
        links = pair(master.slaves, group) if master is not None else {}
        for state in group:
            if state.is_master or master is None or state.log_end is None or master.log_end is None:
                found.append(state)
                continue
            link = links.get(state.address)
            in_sync = link is not None and link.in_sync and state.following in ("", "following")
            behind = max(0, master.log_end - state.log_end)
            found.append(replace(state, behind_bytes=behind, in_sync=in_sync))
    return found


def pair(links: Iterable[HaConnectionInfo], group: Iterable[BrokerState]) -> dict[str, HaConnectionInfo]:
    """Return the connection of each slave of ``group`` by the slave's address, as far as there are enough."""
    left = sorted(links, key=lambda link: -link.slave_ack_offset)
    slaves = [state for state in group if not state.is_master and state.log_end is not None]
    slaves.sort(key=lambda state: -(state.log_end or 0))
    pairs: dict[str, HaConnectionInfo] = {}
    for same_host in (True, False):
        for state in slaves:
            host = _host(state.address)
            link = next((link for link in left if not same_host or _host(link.addr) == host), None)
            if link is not None and state.address not in pairs:
                left.remove(link)
                pairs[state.address] = link
    return pairs


def _host(address: str) -> str:
    return address.removeprefix("/").rpartition(":")[0]


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.lstrip("-").isdigit() else None
