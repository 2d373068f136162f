"""The permissions that requests need: a table from request codes to contexts, for brokers and nameservers. Other codes are refused.

A context is a resource and the actions of which one suffices; a request passes when every one of its contexts is allowed. A retry topic
counts as its group. A request that leaves out a name it must have is refused; where the server takes a missing name for all of them,
the request needs permission for all (``Topic:*``).
"""

from collections.abc import Callable, Iterable, Mapping

from sprocketmq.errors import SprocketError
from sprocketmq.net.server import ServerConnection
from sprocketmq.protocol.bodies import (
    CheckClientConfig,
    HeartbeatData,
    LockBatchRequest,
    QueryAssignment,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    TopicConfigList,
)
from sprocketmq.protocol.bodies.pops import decode_acks
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.names import DEFAULT_TOPIC, REPLY_TOPIC_SUFFIX, RETRY_PREFIX
from sprocketmq.security.policies import Action, Context
from sprocketmq.security.resources import EVERY_NAME, ResourceType

_TOPIC, _GROUP, _CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER

PUB = frozenset({Action.PUB})
SUB = frozenset({Action.SUB})
_CREATE = frozenset({Action.CREATE})
UPDATE = frozenset({Action.UPDATE})
_DELETE = frozenset({Action.DELETE})
GET = frozenset({Action.GET})
_GET_OR_LIST = frozenset({Action.GET, Action.LIST})
_SUB_OR_GET = frozenset({Action.SUB, Action.GET})
_SUB_OR_UPDATE = frozenset({Action.SUB, Action.UPDATE})
_PUB_SUB_OR_GET = frozenset({Action.PUB, Action.SUB, Action.GET})

# A rule: the contexts of a request, from its fields, its body and the name of the server's own cluster.
Rule = Callable[[Command, str], list[Context]]
# Whether the user of an admitted request may do something that shows only while it is handled.
Allows = Callable[[ServerConnection, Command, Context], bool]
# The contexts that some fields of a header ask for.
Part = Callable[[Mapping[str, str]], Iterable[Context]]


class MissingResource(SprocketError):
    """A request does not name a resource that it needs."""

    def __init__(self, field: str) -> None:
        super().__init__(f"the request has no {field}")
        self.field = field


def contexts_of(command: Command, cluster: str) -> list[Context] | None:
    """Return the contexts of ``command`` at a server of ``cluster``, None when there is no rule for its code.

    Raises MissingResource, and ProtocolError for fields or a body that cannot be read.
    """
    rule = REQUIREMENTS.get(command.code)
    return None if rule is None else rule(command, cluster)


# --- parts of a header ---


def _named(fields: Mapping[str, str], field: str) -> str:
    name = fields.get(field)
    if name is None or not name.strip():
        raise MissingResource(field)
    return name


def topic_context(name: str, actions: frozenset[Action], of_retry_group: frozenset[Action] | None = None) -> Context:
    """Return the context for a topic; for a retry topic that of its group, with ``of_retry_group`` or the same actions."""
    if name.startswith(RETRY_PREFIX):
        return Context(_GROUP, name[len(RETRY_PREFIX) :], actions if of_retry_group is None else of_retry_group)
    return Context(_TOPIC, name, actions)


def _topic(actions: frozenset[Action], field: str = "topic", *, retry: frozenset[Action] | None = None) -> Part:
    return lambda fields: (topic_context(_named(fields, field), actions, retry),)


def _group(actions: frozenset[Action], field: str) -> Part:
    return lambda fields: (Context(_GROUP, _named(fields, field), actions),)


def _topic_or_every(actions: frozenset[Action], field: str = "topic") -> Part:
    return lambda fields: (topic_context(_or_every(fields, field), actions),)


def _group_or_every(actions: frozenset[Action], field: str) -> Part:
    return lambda fields: (Context(_GROUP, _or_every(fields, field), actions),)


def _or_every(fields: Mapping[str, str], field: str) -> str:
    name = fields.get(field)
    return name if name and name.strip() else EVERY_NAME


def _listed(part: Callable[[str], Context], field: str, separator: str) -> Part:
    return lambda fields: [part(name) for name in fields.get(field, "").split(separator) if name.strip()]


def _named_cluster(actions: frozenset[Action]) -> Part:
    return lambda fields: (Context(_CLUSTER, _or_every(fields, "clusterName"), actions),)


# --- rules ---


def _header(*parts: Part) -> Rule:
    def rule(command: Command, _: str) -> list[Context]:
        fields = command.ext
        return [context for part in parts for context in part(fields)]

    return rule


def _own_cluster(actions: frozenset[Action]) -> Rule:
    return lambda _, cluster: [Context(_CLUSTER, cluster, actions)]


def _reply(field: str) -> Rule:
    """Answers of request and reply: every user may send to its cluster's reply topic."""

    def rule(command: Command, cluster: str) -> list[Context]:
        topic = _named(command.ext, field)
        return [] if topic == f"{cluster}{REPLY_TOPIC_SUFFIX}" else [topic_context(topic, PUB, SUB)]

    return rule


def _route(command: Command, _: str) -> list[Context]:
    """Routes: every user may ask for those of the template topic, as clients do at their start, and of reply topics: where brokers are."""
    topic = _named(command.ext, "topic")
    return [] if topic == DEFAULT_TOPIC or topic.endswith(REPLY_TOPIC_SUFFIX) else [topic_context(topic, _PUB_SUB_OR_GET, _SUB_OR_GET)]


def _heartbeat(command: Command, _: str) -> list[Context]:
    contexts: list[Context] = []
    for consumer in HeartbeatData.decode(command.body).consumer_data_set:
        contexts.append(Context(_GROUP, consumer.group_name, SUB))
        contexts += [topic_context(subscription.topic, SUB) for subscription in consumer.subscription_data_set]
    return contexts


def _leaving(command: Command, _: str) -> list[Context]:
    group = command.ext.get("consumerGroup", "")
    return [Context(_GROUP, group, SUB)] if group.strip() else []  # a producer group has no owner


def _locks(command: Command, _: str) -> list[Context]:
    request = LockBatchRequest.decode(command.body)
    topics = dict.fromkeys(queue.topic for queue in request.mq_set)
    return [Context(_GROUP, request.consumer_group, SUB), *(topic_context(topic, SUB) for topic in topics)]


def _checked_subscription(command: Command, _: str) -> list[Context]:
    check = CheckClientConfig.decode(command.body)
    return [Context(_GROUP, check.group, SUB), topic_context(check.subscription_data.topic, SUB)]


def _assignment(command: Command, _: str) -> list[Context]:
    asked = QueryAssignment.decode(command.body)
    return [Context(_GROUP, asked.consumer_group, SUB), topic_context(asked.topic, SUB)]


def _acknowledgements(command: Command, _: str) -> list[Context]:
    entries = decode_acks(command.body)
    if not entries:
        raise MissingResource("acks")
    groups, topics = dict.fromkeys(entry.group for entry in entries), dict.fromkeys(entry.topic for entry in entries)
    return [*(Context(_GROUP, group, SUB) for group in groups), *(topic_context(topic, SUB) for topic in topics)]


def _topics_to_create(command: Command, _: str) -> list[Context]:
    topics = TopicConfigList.decode(command.body).topic_config_list
    if not topics:
        raise MissingResource("topicConfigList")
    return [topic_context(config.topic_name, _CREATE) for config in topics]


def _group_to_create(command: Command, _: str) -> list[Context]:
    return [Context(_GROUP, SubscriptionGroupConfig.decode(command.body).group_name, _CREATE)]


def _groups_to_create(command: Command, _: str) -> list[Context]:
    groups = SubscriptionGroupList.decode(command.body).group_config_list
    if not groups:
        raise MissingResource("groupConfigList")
    return [Context(_GROUP, config.group_name, _CREATE) for config in groups]


_SENDS = _header(_topic(PUB, retry=SUB))
_SENDS_V2 = _header(_topic(PUB, "b", retry=SUB))
_READS = _header(_topic(SUB), _group(SUB, "consumerGroup"))
_TOPIC_GET = _header(_topic(GET))
_TOPIC_READ = _header(_topic(_SUB_OR_GET))
_CLUSTER_GET = _own_cluster(GET)
_CLUSTER_LIST = _own_cluster(_GET_OR_LIST)
_CLUSTER_UPDATE = _own_cluster(UPDATE)

REQUIREMENTS: dict[int, Rule] = {
    # --- sends ---
    10: _SENDS,
    310: _SENDS_V2,
    320: _SENDS_V2,
    324: _reply("topic"),
    325: _reply("b"),
    36: _header(_group(SUB, "group")),
    37: _header(_topic(PUB)),
    370: _header(_topic(PUB)),
    # --- consumers ---
    11: _READS,
    361: _READS,
    34: _heartbeat,
    35: _leaving,
    38: _header(_group(_SUB_OR_GET, "consumerGroup")),
    14: _header(_topic(_SUB_OR_GET), _group(_SUB_OR_GET, "consumerGroup")),
    15: _header(_topic(_SUB_OR_UPDATE), _group(_SUB_OR_UPDATE, "consumerGroup")),
    41: _locks,
    42: _locks,
    46: _checked_subscription,
    400: _assignment,
    **dict.fromkeys((309, *range(200050, 200055), 200056, 200070, 200071, 200072), _READS),
    200151: _acknowledgements,
    200055: _header(_group(GET, "consumerGroup"), _topic(GET)),
    # --- reading topics ---
    12: _header(_topic(_SUB_OR_GET)),
    **dict.fromkeys((29, 30, 31, 32), _TOPIC_READ),
    33: _header(_topic_or_every(GET)),
    105: _route,
    **dict.fromkeys((202, 300, 351, 354), _TOPIC_GET),
    # --- reading groups ---
    203: _header(_group(_SUB_OR_GET, "consumerGroup")),
    307: _header(_group(GET, "consumerGroup")),
    **dict.fromkeys((343, 352), _header(_group(GET, "group"))),
    **dict.fromkeys((223, 303, 345), _header(_group(GET, "group"), _topic(GET))),
    321: _header(_group_or_every(GET, "consumerGroup"), _topic(GET)),
    208: _header(
        _group(GET, "consumerGroup"),
        _topic_or_every(GET),
        _listed(lambda name: topic_context(name, GET), "topicList", ";"),
    ),
    308: _header(
        _listed(lambda name: Context(_GROUP, name, GET), "filterGroups", ","),
        _group(GET, "compareGroup"),
        _topic(GET),
    ),
    # --- changing topics and groups ---
    17: _header(_topic(_CREATE)),
    18: _topics_to_create,
    215: _header(_topic(_DELETE)),
    323: _header(_topic(UPDATE)),
    200: _group_to_create,
    225: _groups_to_create,
    207: _header(_group(_DELETE, "groupName")),
    222: _header(_group(UPDATE, "group"), _topic(UPDATE)),
    353: _header(_group(UPDATE, "group"), _topic(UPDATE)),
    314: _header(_group(UPDATE, "destGroup"), _topic_or_every(UPDATE)),
    # --- the cluster that a header names ---
    **dict.fromkeys((322, 901, 1012), _header(_named_cluster(GET))),
    **dict.fromkeys((103, 104, 216, 903, 904, 1002, 1003, 1011, 1013), _header(_named_cluster(UPDATE))),
    # --- the server's own cluster ---
    **dict.fromkeys((101, 204, 219, 315, 317, 328, 355, 1004, 3004, 3005, 3009, 3010), _CLUSTER_GET),
    **dict.fromkeys((21, 26, 28, 43, 45, 60, 61, 201, 305, 402, 907, 1007, 2003), _CLUSTER_GET),
    **dict.fromkeys((106, 206, 224, 304, 311, 312, 313), _CLUSTER_LIST),
    **dict.fromkeys((100, 102, 205, 217, 327, 902, 905, 906, 908, 1001, 1008), _CLUSTER_UPDATE),
    **dict.fromkeys((3001, 3002, 3003, 3006, 3007, 3008), _CLUSTER_UPDATE),
    **dict.fromkeys((25, 27, 209, 210, 306, 316, 318, 319, 329, 401, 513, 2001, 2002, 2004, 5001), _CLUSTER_UPDATE),
}
