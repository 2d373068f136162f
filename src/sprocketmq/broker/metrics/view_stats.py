"""Statistics by name (315), as Apache's tools and exporters ask for them."""

from collections.abc import Callable

from sprocketmq.broker.metrics.counters import BrokerCounters, GroupCounters, TopicCounters
from sprocketmq.broker.metrics.windows import Grown, Windows
from sprocketmq.net.server import ServerConnection
from sprocketmq.protocol.bodies import BrokerStats, StatsWindow
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.headers import BrokerStatsRequest

# Which counter is the sum and which one says how often, by name: the places in what ``Windows`` returns. None: never counted, avgpt is 0.
_OF_TOPIC = {"TOPIC_PUT_NUMS": (0, 2), "TOPIC_PUT_SIZE": (1, 2)}
_OF_GROUP = {"GROUP_GET_NUMS": (0, 2), "GROUP_GET_SIZE": (1, 2), "SNDBCK_PUT_NUMS": (3, 3)}
_OF_BROKER: dict[str, tuple[int, int | None]] = {
    "BROKER_PUT_NUMS": (0, None),
    "BROKER_GET_NUMS": (1, None),
    "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC": (2, None),
    "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC": (3, None),
}
_OF_CHANNELS = {"CONNECT": (4, 4), "CLOSE": (5, 5)}


class ViewStatsHandlers:
    """Answer 315. A statistic is there once something was counted, as in the reference; without, tools show 0.

    ``counters_of`` returns the counters of a topic, None when it does not exist or has counted nothing.
    """

    def __init__(
        self, cluster_name: str, counters: BrokerCounters, windows: Windows, counters_of: Callable[[str], TopicCounters | None]
    ) -> None:
        self._cluster_name = cluster_name
        self._counters = counters
        self._windows = windows
        self._counters_of = counters_of

    def handlers(self) -> dict[int, Callable[[ServerConnection, Command], None]]:
        return {RequestCode.VIEW_BROKER_STATS_DATA: self.view}

    def view(self, conn: ServerConnection, command: Command) -> None:
        """Answer 315: what was counted in the last minute, hour and day."""
        request = command.header(BrokerStatsRequest)
        found = self._find(request.stats_name, request.stats_key)
        if found is None:
            remark = f"The stats <{request.stats_name}> <{request.stats_key}> not exist"
            conn.respond(command, ResponseCode.SYSTEM_ERROR, remark=remark)
            return
        conn.respond(command, ResponseCode.SUCCESS, body=BrokerStats(*found).encode())

    def _find(self, name: str, key: str) -> list[StatsWindow] | None:
        counters = self._counters
        if name in _OF_TOPIC:
            topic = self._counters_of(key)
            if topic is None or not topic.put_requests:
                return None
            return _windows(self._windows.of_topic(topic), *_OF_TOPIC[name])
        if name in _OF_GROUP:
            group = self._group(key)
            if group is None or not (group.sent_back if name == "SNDBCK_PUT_NUMS" else group.get_requests):
                return None
            return _windows(self._windows.of_group(group), *_OF_GROUP[name])
        if name in _OF_BROKER and key == self._cluster_name:
            if not (counters.put_messages if "PUT" in name else counters.get_messages):
                return None
            return _windows(self._windows.of_broker(), *_OF_BROKER[name])
        if name == "CHANNEL_ACTIVITY" and key in _OF_CHANNELS:
            if not (counters.connections_opened if key == "CONNECT" else counters.connections_closed):
                return None
            return _windows(self._windows.of_broker(), *_OF_CHANNELS[key])
        return None

    def _group(self, key: str) -> GroupCounters | None:
        """Return the counters of ``topic@group``."""
        name, _, group = key.partition("@")
        topic = self._counters_of(name)
        return topic.groups.get(group) if topic is not None else None


def _windows(grown: list[Grown], amount: int, times: int | None) -> list[StatsWindow]:
    return [_window(window, amount, times) for window in grown]


def _window(grown: Grown, amount: int, times: int | None) -> StatsWindow:
    total = grown.amounts[amount]
    often = grown.amounts[times] if times is not None else 0
    return StatsWindow(total, grown.rate(amount), total / often if often else 0.0)
