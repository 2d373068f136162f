"""The rules for topic, group and tag names, checked before any name is used in a path or sent."""

import re

from sprocketmq.errors import InvalidName

MAX_TOPIC_LENGTH = 127
MAX_INTERNAL_TOPIC_LENGTH = 255
MAX_GROUP_LENGTH = 120

RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
DEFAULT_TOPIC = "TBW102"
# The topic of the replies in a cluster is its name and this.
REPLY_TOPIC_SUFFIX = "_REPLY_TOPIC"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
# The topics in which our brokers and Apache's, whose other files differ, park messages with a delivery time of their own.
TIMER_TOPIC = "rmq_sys_sprocketmq_timer"
APACHE_TIMER_TOPIC = "rmq_sys_wheel_timer"
# The topics of half messages, of the marks of ended transactions, and of half messages that were given up on.
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
DISCARDED_HALVES_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
# The group whose offsets are the progress in the queues of the first two.
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"

# The groups that every broker has from its start.
SYSTEM_GROUPS = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    TRANSACTION_GROUP,
)

SYSTEM_TOPICS = frozenset(
    {
        DEFAULT_TOPIC,
        SCHEDULE_TOPIC,
        "BenchmarkTest",
        HALF_TOPIC,
        OP_TOPIC,
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
        "RMQ_SYS_TRACE_TOPIC",
        DISCARDED_HALVES_TOPIC,
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "CHECKPOINT_TOPIC",
    }
)
SYSTEM_TOPIC_PREFIX = "rmq_sys_"

SEND_FORBIDDEN_TOPICS = frozenset(
    {
        SCHEDULE_TOPIC,
        TIMER_TOPIC,
        HALF_TOPIC,
        OP_TOPIC,
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
        DISCARDED_HALVES_TOPIC,
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    }
)

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+\Z")


def name_problem(name: object, limit: int) -> str | None:
    """Return why ``name`` is not acceptable (blank, longer than ``limit`` characters, illegal characters), or None."""
    if not isinstance(name, str):
        return f"it must be a str, not {type(name).__name__}"
    if not name.strip():
        return "it is blank"
    if len(name) > limit:
        return f"it is {len(name)} characters long, the limit is {limit}"
    if not _NAME.match(name):
        return "only ASCII letters, digits and % | _ - are allowed"
    return None


def check_topic(name: str) -> str:
    """Return ``name`` when it is a valid topic name, else raise InvalidName. Retry and dead-letter topics may be 255 long."""
    internal = str(name).startswith((RETRY_PREFIX, DLQ_PREFIX))
    if problem := name_problem(name, MAX_INTERNAL_TOPIC_LENGTH if internal else MAX_TOPIC_LENGTH):
        raise InvalidName("topic", name, problem)
    return name


def check_send_topic(name: str) -> str:
    """Return ``name`` when clients may send to it, else raise InvalidName: valid, and not one of the broker's internal topics.

    Stricter than brokers, which accept messages for the template topic and for ``rmq_sys_`` topics: sending there is always a mistake.
    """
    check_topic(name)
    if name in SEND_FORBIDDEN_TOPICS or name.startswith(SYSTEM_TOPIC_PREFIX):
        raise InvalidName("topic", name, "it is a system topic that does not take messages")
    if name == DEFAULT_TOPIC:
        raise InvalidName("topic", name, "it is the template that brokers make new topics from, not a topic for messages")
    return name


def check_group(name: str) -> str:
    """Return ``name`` when it is a valid producer or consumer group name, else raise InvalidName."""
    if problem := name_problem(name, MAX_GROUP_LENGTH):
        raise InvalidName("group", name, problem)
    return name


def check_tag(tag: str) -> str:
    """Return ``tag`` when a consumer could subscribe to it, else raise InvalidName.

    A tag that holds ``||``, is ``*``, has blanks around it or holds a property separator could be sent but never matched; one with ``&&``
    is meant as several, and a message has one. Blanks inside are allowed, as Apache's clients send such tags.
    """
    if not isinstance(tag, str):
        raise InvalidName("tag", tag, f"it must be a str, not {type(tag).__name__}")
    if not tag or tag != tag.strip():
        raise InvalidName("tag", tag, "it is empty or has blanks around it")
    if tag == "*" or "||" in tag or "&&" in tag:
        raise InvalidName("tag", tag, "a message has one tag; '*', '||' and '&&' are words of subscription expressions")
    if "\x01" in tag or "\x02" in tag:
        raise InvalidName("tag", tag, "the characters 0x01 and 0x02 separate properties")
    return tag


def is_system_topic(name: str) -> bool:
    """Return whether ``name`` belongs to the broker itself."""
    return name in SYSTEM_TOPICS or name.startswith(SYSTEM_TOPIC_PREFIX)


class Namespace:
    """A prefix for the names of topics and groups, so that several teams or stages share a cluster: ``shop%orders``.

    The call puts it before a name, ``remove`` takes it away again. Clients, options and commands take the whole name, and results and
    received messages have it, too. The names are those that a Java client with this namespace uses. An empty name adds nothing: the same
    program runs with and without a namespace.

    Raises InvalidName for a name that is blank, or has characters other than ASCII letters, digits and ``| _ -``.

    Example::

        from sprocketmq import Message, Namespace, Producer

        shop = Namespace("shop")

        async with Producer(shop("checkout"), namesrv="127.0.0.1:9876") as producer:
            message = Message(shop("orders"), b"3 apples")
            await producer.send(message)
            print(message.topic, "without its namespace is", shop.remove(message.topic))
    """

    def __init__(self, name: str) -> None:
        problem = name_problem(name, MAX_TOPIC_LENGTH) if name != "" else None
        if problem is None and "%" in name:
            problem = "% separates it from the name of a topic or group: give it without"
        if problem is not None:
            raise InvalidName("namespace", name, problem.replace("% | _ -", "| _ -"))
        self.name: str = name
        self._prefix = f"{name}%" if name else ""

    def __call__(self, name: str) -> str:
        """Return ``name``, of a topic or a group, in this namespace.

        A retry or dead-letter topic gets the prefix before its group's name (``%DLQ%shop%billing``). Names in the namespace already stay as
        they are, and so do those of system topics and groups, which have no namespace. Raises InvalidName when it cannot be a name.
        """
        check_topic(name)
        if is_system_topic(name) or name in SYSTEM_GROUPS:
            return name
        kind, rest = _kind_and_rest(name)
        return name if rest.startswith(self._prefix) else f"{kind}{self._prefix}{rest}"

    def remove(self, name: str) -> str:
        """Return ``name`` without the namespace; as it is when it has another one, or none."""
        kind, rest = _kind_and_rest(name)
        return f"{kind}{rest.removeprefix(self._prefix)}"

    def __repr__(self) -> str:
        return f"Namespace({self.name!r})"


def _kind_and_rest(name: str) -> tuple[str, str]:
    kind = next((prefix for prefix in (RETRY_PREFIX, DLQ_PREFIX) if name.startswith(prefix)), "")
    return kind, name[len(kind) :]
