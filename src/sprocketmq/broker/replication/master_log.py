"""The questions of a slave to its master before it follows: bounds, epochs and segment length of the log, and the master's mode."""

from sprocketmq.broker.outgoing import Outgoing
from sprocketmq.broker.replication.roles import Role
from sprocketmq.broker.replication.stream import MasterLog
from sprocketmq.errors import BrokerBusy, RemoteProtocolError
from sprocketmq.net.client import Connection
from sprocketmq.protocol.bodies import EpochCache, RuntimeInfo
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.storage.replica.epochs import Epoch

ASK_TIMEOUT_S = 3.0


async def ask_master(outgoing: Outgoing, address: str) -> MasterLog:
    """Ask the master at its address for clients, over a connection of its own (28, 26 and 1007).

    Raises SprocketError when it does not answer, RemoteProtocolError when its answer lacks the bounds of its log.
    """
    pool = outgoing.pool("broker")
    try:
        return await _ask(await pool.get(address, timeout_s=ASK_TIMEOUT_S))
    finally:
        await pool.close()


async def _ask(conn: Connection) -> MasterLog:
    # The epochs first: a master begins an epoch before anything is written in it, so the end asked for later is not of an unknown epoch.
    epochs = await _epochs(conn)
    answer = await conn.request(RequestCode.GET_BROKER_RUNTIME_INFO, timeout_s=ASK_TIMEOUT_S)
    if answer.code != ResponseCode.SUCCESS:
        raise BrokerBusy(answer.code, answer.remark, address=conn.address)
    table = RuntimeInfo.decode(answer.body).table
    try:
        begin, end = int(table["commitLogMinOffset"]), int(table["commitLogMaxOffset"])
    except (KeyError, ValueError):
        raise RemoteProtocolError(f"{conn.address} does not tell where its commit log begins and ends: it is not a broker") from None
    segment_bytes, copies = await _settings(conn)
    return MasterLog(max(begin, 0), end, epochs, segment_bytes, copies)


async def _epochs(conn: Connection) -> tuple[Epoch, ...] | None:
    """Return the epochs, None for a broker without any, such as Apache's outside of controller mode."""
    answer = await conn.request(RequestCode.GET_BROKER_EPOCH_CACHE, timeout_s=ASK_TIMEOUT_S)
    if answer.code != ResponseCode.SUCCESS:
        return None
    return tuple(Epoch(entry.epoch, entry.start_offset) for entry in EpochCache.decode(answer.body).epoch_list) or None


async def _settings(conn: Connection) -> tuple[int | None, int | None]:
    """Return the length of the log's files, and how many copies of a send the master waits for, its own included."""
    answer = await conn.request(RequestCode.GET_BROKER_CONFIG, timeout_s=ASK_TIMEOUT_S)
    if answer.code != ResponseCode.SUCCESS:
        return None, None
    lines = bytes(answer.body).decode(errors="replace").splitlines()
    settings = {name: value for name, _, value in (line.partition("=") for line in lines)}
    size, copies, role = settings.get("mappedFileSizeCommitLog", ""), settings.get("inSyncReplicas", ""), settings.get("brokerRole")
    waits = {Role.SYNC_MASTER: max(2, int(copies) if copies.isdecimal() else 2), Role.ASYNC_MASTER: 1}
    return int(size) if size.isdecimal() else None, next((count for mode, count in waits.items() if mode == role), None)
