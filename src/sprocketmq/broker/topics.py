"""The broker's topics: their queues, permissions and attributes."""

import logging
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from sprocketmq.broker.attributes import (
    BATCH_QUEUES,
    CLEANUP_POLICY,
    MESSAGE_TYPE,
    QUEUE_TYPE,
    AttributeRefused,
    change_attributes,
    not_done,
    parse_changes,
)
from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.errors import FatalError, SprocketError
from sprocketmq.net.peerlog import PeerLog
from sprocketmq.protocol.bodies import DataVersion, TopicConfig, TopicConfigTable
from sprocketmq.protocol.codes import PERM_INHERIT, PERM_READ, PERM_WRITE, SYSFLAG_MULTI_TAGS, ResponseCode
from sprocketmq.protocol.headers import CreateTopic
from sprocketmq.protocol.names import (
    DEFAULT_TOPIC,
    DLQ_PREFIX,
    HALF_TOPIC,
    MAX_INTERNAL_TOPIC_LENGTH,
    MAX_TOPIC_LENGTH,
    OP_TOPIC,
    REPLY_TOPIC_SUFFIX,
    RETRY_PREFIX,
    SEND_FORBIDDEN_TOPICS,
    is_system_topic,
    name_problem,
)
from sprocketmq.storage.store import MessageStore

if TYPE_CHECKING:
    from sprocketmq.broker.metrics.counters import TopicCounters

log = logging.getLogger(__name__)

# Far above any sensible topic, and low enough that a loop over all queues of a hostile one is short.
MAX_QUEUES = 16_384
# Sends create topics; the limit keeps a client that invents names from growing the table for ever.
MAX_TOPICS = 100_000
MAX_ADOPTED_QUEUES = 1024
MAX_PERM = PERM_READ | PERM_WRITE | PERM_INHERIT
READ_WRITE = PERM_READ | PERM_WRITE
NO_ATTRIBUTES: Mapping[str, str] = MappingProxyType({})
# What a request is told that meets a limit of the broker.
OVERLOAD = "[OVERLOAD]system busy, start flow control for a while"
NO_LITE_TOPICS = "this broker has no lite topics: leave out liteTopic"
FAQ = "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."


class TopicRefused(FatalError):
    """A topic that cannot be created, changed or used; ``code`` is the response code that says so."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark


class Topic:
    """One topic for the hot paths: its limits as plain attributes, and the pulls that wait on its queues.

    ``refusal`` is None when clients may send to it, else the ``(code, remark)`` to answer with. ``batch_queues`` says that its queues
    are batch queues, ``retry_group`` whose retry topic it is.
    """

    __slots__ = (
        "batch_queues",
        "config",
        "counters",
        "held",
        "max_queue_id",
        "name",
        "pops",
        "read_queues",
        "readable",
        "refusal",
        "retry_group",
        "sys_flag",
        "unsupported",
        "write_queues",
    )

    def __init__(self, config: TopicConfig, permission: int = READ_WRITE) -> None:
        self.held: dict[int, Any] = {}
        self.pops = 0  # how many pops wait for messages
        self.counters: TopicCounters | None = None  # None until there is something to count
        self.take(config, permission)

    def take(self, config: TopicConfig, permission: int) -> None:
        """Adopt a changed configuration, limited by the broker's permission; waiting pulls stay."""
        self.config = config
        self.name = config.topic_name
        self.retry_group = self.name.removeprefix(RETRY_PREFIX) if self.name.startswith(RETRY_PREFIX) else None
        self.read_queues = config.read_queue_nums
        self.write_queues = config.write_queue_nums
        self.max_queue_id = max(config.read_queue_nums, config.write_queue_nums) - 1
        self.readable = bool(config.perm & permission & PERM_READ)
        self.sys_flag = SYSFLAG_MULTI_TAGS if config.topic_filter_type == "MULTI_TAG" else 0
        self.batch_queues = config.attributes.get(QUEUE_TYPE) == BATCH_QUEUES
        self.unsupported = unsupported_attributes(config.attributes)
        if self.name in SEND_FORBIDDEN_TOPICS:
            self.refusal: tuple[int, str] | None = (ResponseCode.NO_PERMISSION, f"Sending message to topic[{self.name}] is forbidden.")
        elif not config.perm & PERM_WRITE or config.write_queue_nums <= 0:
            self.refusal = (ResponseCode.NO_PERMISSION, f"the topic[{self.name}] sending message is forbidden")
        elif config.order and not permission & PERM_WRITE:
            # Producers of other topics leave when their route changes, and nothing is refused until then; ordered topics need an exact end.
            self.refusal = (ResponseCode.NO_PERMISSION, f"the broker's permission forbids sends to the ordered topic[{self.name}]")
        elif self.unsupported:
            self.refusal = (ResponseCode.SYSTEM_ERROR, f"topic[{self.name}] cannot be written: {self.unsupported}")
        else:
            self.refusal = None

    def describe(self) -> str:
        """Return the configuration as the reference's error texts print it."""
        config = self.config
        perm = "".join(letter if config.perm & bit else "-" for bit, letter in ((4, "R"), (2, "W"), (1, "X")))
        attributes = ", ".join(f"{key}={value}" for key, value in config.attributes.items())
        return (
            f"TopicConfig [topicName={self.name}, readQueueNums={config.read_queue_nums}, writeQueueNums={config.write_queue_nums}, "
            f"perm={perm}, topicFilterType={config.topic_filter_type}, topicSysFlag={config.topic_sys_flag}, "
            f"order={'true' if config.order else 'false'}, attributes={{{attributes}}}]"
        )


def unsupported_attributes(attributes: Mapping[str, str]) -> str:
    """Return why a topic with these attributes cannot be served, or "". Storing it as something else would damage it."""
    kind = attributes.get(QUEUE_TYPE, "SimpleCQ")
    if kind not in ("SimpleCQ", BATCH_QUEUES):
        return f"this broker has no {kind} queues"
    if attributes.get(CLEANUP_POLICY, "DELETE") != "DELETE":
        return "this broker does not compact topics; create the topic without +cleanup.policy, or with +cleanup.policy=DELETE"
    return ""


def check_topic_name(name: str) -> None:
    """Raise TopicRefused, with the reference's text, when ``name`` is not a valid topic name."""
    limit = 255 if name.startswith((RETRY_PREFIX, DLQ_PREFIX)) else MAX_TOPIC_LENGTH
    if not name.strip():
        raise TopicRefused(ResponseCode.INVALID_PARAMETER, "The specified topic is blank.")
    if len(name) > limit:
        raise TopicRefused(ResponseCode.INVALID_PARAMETER, f"The specified topic is longer than topic max length {limit}.")
    if name_problem(name, limit):
        remark = f"The specified topic: {name}, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
        raise TopicRefused(ResponseCode.INVALID_PARAMETER, remark)


def topic_not_exist(name: str) -> TopicRefused:
    """Return the refusal for an unknown topic."""
    return TopicRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!\n{FAQ}")


class TopicTable:
    """All topics by name, with the data version nameservers compare.

    ``changed`` is called with the topics that were created or altered, after each change; the owner saves and announces them.
    ``declare`` is called with the name of each new topic of batch queues before it exists, and may refuse it with an error.
    ``folds_case`` says whether names that differ only in case are one directory for the store: only the first is taken then.
    ``trace_topic`` names the topic of message traces, which is then the broker's own.
    """

    def __init__(
        self,
        *,
        cluster_name: str,
        broker_name: str,
        auto_create: bool,
        default_queues: int = 8,
        trace_topic: str | None = None,
        permission: int = READ_WRITE,
        clock: Clock = SYSTEM_CLOCK,
        changed: Callable[[list[TopicConfig]], None] = lambda _: None,
        declare: Callable[[str], None] = lambda _: None,
        folds_case: Callable[[], bool] = lambda: False,
    ) -> None:
        self._clock = clock
        self._default_queues = default_queues
        self.permission = permission
        self._changed = changed
        self._declare = declare
        self._folds_case = folds_case
        self.event_log = PeerLog(log, clock.monotonic, level=logging.INFO)  # of what clients create
        self.data_version = DataVersion(0, clock.time_ms(), 0)
        self._topics: dict[str, Topic] = {}
        self.get = self._topics.get  # one call less on the hot path
        names = _own_topics(cluster_name, broker_name)
        if trace_topic is not None:
            names[trace_topic] = (1, READ_WRITE)
        self.own_names = frozenset(names)
        for name, (queues, perm) in names.items():
            self._put(TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm))
        self.auto_create = False
        self.let_sends_create(auto_create)

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._topics.values())

    def __len__(self) -> int:
        return len(self._topics)

    def __contains__(self, name: object) -> bool:
        return name in self._topics

    def _put(self, config: TopicConfig) -> None:
        topic = self._topics.get(config.topic_name)
        if topic is None:
            self._topics[config.topic_name] = Topic(config, self.permission)
        else:
            topic.take(config, self.permission)

    def _record(self, configs: list[TopicConfig]) -> None:
        """Add new and changed topics, all or none. Raises TopicRefused."""
        new = [config for config in configs if config.topic_name not in self._topics]
        if new and len(self._topics) + len(new) > MAX_TOPICS:
            raise TopicRefused(ResponseCode.SYSTEM_ERROR, f"this broker has {MAX_TOPICS} topics, its limit")
        if new and self._folds_case():
            self._check_case(new)
        for config in new:
            if config.attributes.get(QUEUE_TYPE) == BATCH_QUEUES:
                try:
                    self._declare(config.topic_name)
                except SprocketError as e:
                    raise TopicRefused(ResponseCode.SYSTEM_ERROR, str(e)) from None
        for config in configs:
            self._put(config)
        self.data_version = self.data_version.next(self._clock.time_ms())
        self._changed(configs)

    def _check_case(self, new: list[TopicConfig]) -> None:
        """Raise TopicRefused for a new topic whose queues would be in the files of another."""
        taken = {name.casefold(): name for name in self._topics}
        for config in new:
            name = config.topic_name
            other = taken.setdefault(name.casefold(), name)
            if other != name:
                reason = f"it differs from topic[{other}] only in case, and this broker's file system takes both for one"
                raise TopicRefused(ResponseCode.SYSTEM_ERROR, f"topic[{name}] cannot be created: {reason}; choose another name")

    # --- permission of the broker ---

    def let_sends_create(self, allowed: bool) -> None:
        """Allow or forbid sends to create topics from the template topic, which is kept either way."""
        self.auto_create = allowed
        if allowed and DEFAULT_TOPIC not in self._topics:
            queues = self._default_queues
            perm = READ_WRITE | PERM_INHERIT
            self._put(TopicConfig(topic_name=DEFAULT_TOPIC, read_queue_nums=queues, write_queue_nums=queues, perm=perm))

    def permit(self, permission: int) -> None:
        """Change the broker's permission, the sum of 2 (write) and 4 (read), and advance the data version, so that clients learn of it."""
        self.permission = permission
        for topic in self:
            topic.take(topic.config, permission)
        self.bump_version()

    def registration(self, configs: list[TopicConfig] | None = None) -> TopicConfigTable:
        """Return all topics, or ``configs`` only, for nameservers: without the permissions that the broker lacks."""
        table = self.wrapper(configs)
        if self.permission != READ_WRITE:
            allowed = self.permission | PERM_INHERIT
            found = table.topic_config_table.items()
            table.topic_config_table = {name: msgspec.structs.replace(config, perm=config.perm & allowed) for name, config in found}
        return table

    # --- files and wire ---

    def load(self, tree: Mapping[Any, Any]) -> None:
        """Take the content of topics.json. Raises RemoteProtocolError when it has another form."""
        table = TopicConfigTable.decode(msgspec.json.encode(tree))
        for config in table.topic_config_table.values():
            self._put(config)
        self.data_version = table.data_version

    def snapshot(self) -> dict[str, Any]:
        """Return the content for topics.json."""
        tree = msgspec.to_builtins(self.wrapper())
        return {"dataVersion": tree["dataVersion"], "topicConfigTable": tree["topicConfigTable"]}

    def wrapper(self, configs: list[TopicConfig] | None = None) -> TopicConfigTable:
        """Return all topics, or ``configs`` only, in wire form."""
        chosen = [topic.config for topic in self] if configs is None else configs
        return TopicConfigTable({config.topic_name: config for config in chosen}, self.data_version, self.data_version)

    def bump_version(self) -> None:
        """Advance the data version so that every nameserver takes the whole table at the next registration."""
        self.data_version = self.data_version.next(self._clock.time_ms())

    def replace(self, table: TopicConfigTable) -> list[Topic]:
        """Take the topics of the master that is followed, with their data version, and return the topics that are gone.

        The broker's own topics stay. A topic whose name is not valid is left out; one whose queues are of another kind here is logged.
        """
        configs = {name: config for name, config in table.topic_config_table.items() if not name_problem(name, MAX_INTERNAL_TOPIC_LENGTH)}
        gone = [topic for name, topic in self._topics.items() if name not in configs and name not in self.own_names]
        for topic in gone:
            del self._topics[topic.name]
        for name, config in configs.items():
            known = self.get(name)
            if config.attributes.get(QUEUE_TYPE) == BATCH_QUEUES and (known is None or not known.batch_queues):
                try:
                    self._declare(name)
                except SprocketError as e:
                    log.error("topic %s has batch queues at the master, not here: %s", name, e)  # noqa: TRY400
            if known is None or known.config != config:
                self._put(config)
        self.data_version = table.data_version
        self._changed([])
        return gone

    # --- changes ---

    def request_for(self, config: TopicConfig) -> CreateTopic:
        """Return the request that makes a topic equal to an entry of a list, whose attributes are signed changes or the topic's own."""
        known = self.get(config.topic_name)
        has = known.config.attributes if known is not None else NO_ATTRIBUTES
        changes = [(key, value) for key, value in config.attributes.items() if has.get(key) != value]
        return CreateTopic(
            config.topic_name,
            config.read_queue_nums,
            config.write_queue_nums,
            config.perm,
            topic_filter_type=config.topic_filter_type,
            topic_sys_flag=config.topic_sys_flag,
            order=config.order,
            attributes=",".join(key if key[:1] == "-" else f"+{key.removeprefix('+')}={value}" for key, value in changes),
        )

    def create_or_update(self, *requests: CreateTopic) -> bool:
        """Create or change topics as an administrator asks, all or none; False when nothing changes. Raises TopicRefused."""
        asked: dict[str, TopicConfig] = {}
        for request in requests:
            if request.topic in asked:
                raise TopicRefused(ResponseCode.INVALID_PARAMETER, f"topic[{request.topic}] is given twice")
            asked[request.topic] = self._checked(request)
        changed = [config for name, config in asked.items() if (known := self.get(name)) is None or known.config != config]
        if changed:
            self._record(changed)
        return bool(changed)

    def _checked(self, request: CreateTopic) -> TopicConfig:
        """Return the topic that a request asks for. Raises TopicRefused."""
        name = request.topic
        check_topic_name(name)
        self.check_not_own(name)
        if not (0 <= request.read_queue_nums <= MAX_QUEUES and 0 <= request.write_queue_nums <= MAX_QUEUES):
            raise TopicRefused(ResponseCode.INVALID_PARAMETER, f"a topic has 0 to {MAX_QUEUES} queues")
        if not 0 <= request.perm <= MAX_PERM:
            remark = f"perm[{request.perm}] is illegal: it is a sum of 1 (inherit), 2 (write) and 4 (read)"
            raise TopicRefused(ResponseCode.INVALID_PARAMETER, remark)
        if request.topic_filter_type not in ("SINGLE_TAG", "MULTI_TAG"):
            raise TopicRefused(ResponseCode.INVALID_PARAMETER, f"topicFilterType[{request.topic_filter_type}] is illegal")
        if not 0 <= request.topic_sys_flag <= 0x7FFFFFFF:
            raise TopicRefused(ResponseCode.INVALID_PARAMETER, f"topicSysFlag[{request.topic_sys_flag}] is illegal")
        existing = self.get(name)
        try:
            attributes = change_attributes(existing.config.attributes if existing else None, parse_changes(request.attributes))
        except AttributeRefused as e:
            raise TopicRefused(ResponseCode.SYSTEM_ERROR, str(e)) from None
        had = existing.config.attributes if existing else NO_ATTRIBUTES
        if attributes.get(MESSAGE_TYPE) == "MIXED" != had.get(MESSAGE_TYPE):
            raise TopicRefused(ResponseCode.INVALID_PARAMETER, "MIXED message type is not supported.")
        reason = next((why for key, value in attributes.items() if had.get(key) != value and (why := not_done(key, value))), "")
        if reason := reason or unsupported_attributes(attributes):
            raise TopicRefused(ResponseCode.SYSTEM_ERROR, f"topic[{name}] cannot be created: {reason}")
        return TopicConfig(
            topic_name=name,
            read_queue_nums=request.read_queue_nums,
            write_queue_nums=request.write_queue_nums,
            perm=request.perm,
            topic_filter_type=request.topic_filter_type,
            topic_sys_flag=request.topic_sys_flag,
            order=request.order,
            attributes=attributes,
        )

    def create_for_send(self, name: str, default_topic: str, wanted_queues: int) -> Topic | None:
        """Create a topic for its first message: the template's queues, at most ``wanted_queues``; None when that is not allowed.

        Retry topics are always created, with one queue. Raises TopicRefused for a bad name.
        """
        check_topic_name(name)
        if name.startswith(RETRY_PREFIX):
            return self.create_internal(name, 1)
        template = self.get(default_topic)
        if template is None or not self.auto_create or not template.config.perm & PERM_INHERIT:
            return None
        queues = max(0, min(wanted_queues, template.config.write_queue_nums))
        if not queues:
            return None
        perm = template.config.perm & ~PERM_INHERIT
        return self.create_internal(name, queues, perm, template.config.topic_filter_type)

    def create_internal(
        self,
        name: str,
        queues: int,
        perm: int = READ_WRITE,
        filter_type: str = "SINGLE_TAG",
        attributes: Mapping[str, str] = NO_ATTRIBUTES,
    ) -> Topic:
        """Return a topic that the broker itself needs, created if need be."""
        topic = self.get(name)
        if topic is None:
            config = TopicConfig(
                topic_name=name,
                read_queue_nums=queues,
                write_queue_nums=queues,
                perm=perm,
                topic_filter_type=filter_type,
                attributes=dict(attributes),
            )
            self._record([config])
            self.event_log.event(name, "topic_created", topic=name, queues=queues, perm=perm)
            topic = self._topics[name]
        return topic

    def adopt(self, store: MessageStore) -> None:
        """Add the topics that have messages in the store but no entry, as after a kill between the two writes.

        A slave whose master is gone has them for topics that were created in the master's last second.
        """
        fold = str.casefold if self._folds_case() else str
        known = {fold(name) for name in self._topics}
        for name in store.topics_on_disk():
            if fold(name) not in known:
                used = [queue_id for queue_id in range(MAX_ADOPTED_QUEUES) if store.max_offset(name, queue_id) > 0]
                attributes = {QUEUE_TYPE: BATCH_QUEUES} if name in store.batch_topics else NO_ATTRIBUTES
                self.create_internal(name, max(used, default=0) + 1, attributes=attributes)

    def mark_batch_queues(self, topic: Topic) -> None:
        """Add the missing attribute of a topic whose queues are batch queues."""
        attributes = {**topic.config.attributes, QUEUE_TYPE: BATCH_QUEUES}
        topic.take(msgspec.structs.replace(topic.config, attributes=attributes), self.permission)
        self._changed([topic.config])

    def check_not_own(self, name: str) -> None:
        """Raise TopicRefused for the broker's own topics, which administrators may not touch."""
        if is_system_topic(name) or name in self.own_names:
            raise TopicRefused(ResponseCode.INVALID_PARAMETER, f"The topic[{name}] is conflict with system topic.")

    def delete(self, name: str) -> Topic | None:
        """Remove a topic and return it, or None when there was none. Raises TopicRefused for the broker's own."""
        self.check_not_own(name)
        topic = self._topics.pop(name, None)
        if topic is not None:
            self.data_version = self.data_version.next(self._clock.time_ms())
            self._changed([])
        return topic


def _own_topics(cluster_name: str, broker_name: str) -> dict[str, tuple[int, int]]:
    """Return the topics every broker has: queues and permission by name."""
    return {
        "SELF_TEST_TOPIC": (1, READ_WRITE),
        "BenchmarkTest": (1024, READ_WRITE),
        cluster_name: (16, READ_WRITE | PERM_INHERIT),
        broker_name: (1, READ_WRITE | PERM_INHERIT),
        "OFFSET_MOVED_EVENT": (1, READ_WRITE),
        "SCHEDULE_TOPIC_XXXX": (18, READ_WRITE),
        HALF_TOPIC: (1, READ_WRITE),
        OP_TOPIC: (1, READ_WRITE),
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC": (1, READ_WRITE),
        "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC": (1, READ_WRITE),
        f"{cluster_name}{REPLY_TOPIC_SUFFIX}": (1, READ_WRITE),
        f"rmq_sys_SYNC_BROKER_MEMBER_{broker_name}": (1, PERM_INHERIT),
        f"rmq_sys_REVIVE_LOG_{cluster_name}": (8, READ_WRITE),
    }
