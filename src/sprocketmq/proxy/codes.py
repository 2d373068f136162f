"""Numbers of the messaging API, and the outcomes of calls in its codes."""

from enum import IntEnum
from typing import Any

from sprocketmq.errors import (
    AccessRefused,
    AuthenticationFailed,
    BrokerBusy,
    BrokerError,
    ConfigError,
    InvalidName,
    MessageTooLarge,
    ProtocolError,
    RequestTimeout,
    SprocketError,
    TopicNotFound,
    TopicReadOnly,
)
from sprocketmq.proxy.schema import Status


class Code(IntEnum):
    """The outcome of a call; the transport's own status stays OK."""

    OK = 20000
    MULTIPLE_RESULTS = 30000
    BAD_REQUEST = 40000
    ILLEGAL_TOPIC = 40002
    ILLEGAL_CONSUMER_GROUP = 40003
    ILLEGAL_MESSAGE_TAG = 40004
    ILLEGAL_MESSAGE_KEY = 40005
    ILLEGAL_MESSAGE_GROUP = 40006
    ILLEGAL_MESSAGE_PROPERTY_KEY = 40007
    INVALID_TRANSACTION_ID = 40008
    ILLEGAL_MESSAGE_ID = 40009
    ILLEGAL_FILTER_EXPRESSION = 40010
    ILLEGAL_INVISIBLE_TIME = 40011
    ILLEGAL_DELIVERY_TIME = 40012
    INVALID_RECEIPT_HANDLE = 40013
    MESSAGE_PROPERTY_CONFLICT_WITH_TYPE = 40014
    UNRECOGNIZED_CLIENT_TYPE = 40015
    MESSAGE_CORRUPTED = 40016
    CLIENT_ID_REQUIRED = 40017
    ILLEGAL_POLLING_TIME = 40018
    UNAUTHORIZED = 40100
    FORBIDDEN = 40300
    MESSAGE_NOT_FOUND = 40401
    TOPIC_NOT_FOUND = 40402
    CONSUMER_GROUP_NOT_FOUND = 40403
    MESSAGE_BODY_TOO_LARGE = 41301
    MESSAGE_BODY_EMPTY = 41302
    TOO_MANY_REQUESTS = 42900
    MESSAGE_PROPERTIES_TOO_LARGE = 43101
    INTERNAL_SERVER_ERROR = 50001
    HA_NOT_AVAILABLE = 50002
    NOT_IMPLEMENTED = 50100
    PROXY_TIMEOUT = 50400
    MASTER_PERSISTENCE_TIMEOUT = 50401
    SLAVE_PERSISTENCE_TIMEOUT = 50402


class ClientType(IntEnum):
    """The kinds of clients."""

    PRODUCER = 1
    PUSH_CONSUMER = 2
    SIMPLE_CONSUMER = 3


class MessageType(IntEnum):
    """The types of messages, and of topics by the messages they accept."""

    NORMAL = 1
    FIFO = 2
    DELAY = 3
    TRANSACTION = 4
    LITE = 5
    PRIORITY = 6


class Permission(IntEnum):
    """The permissions of a queue."""

    READ = 2
    WRITE = 3
    READ_WRITE = 4


class AddressScheme(IntEnum):
    """The kinds of hosts in addresses."""

    IPV4 = 1
    IPV6 = 2
    DOMAIN_NAME = 3


class PopCode(IntEnum):
    """Requests to brokers that consumers need (docs/guide/grpc.md)."""

    POP_MESSAGE = 200050
    ACK_MESSAGE = 200051
    CHANGE_MESSAGE_INVISIBLETIME = 200053


FILTER_TAG, FILTER_SQL = 1, 2
ENCODING_IDENTITY, ENCODING_GZIP = 1, 2
DIGEST_CRC32, DIGEST_MD5, DIGEST_SHA1 = 1, 2, 3
COMMIT, ROLLBACK = 1, 2
FROM_SERVER_CHECK = 2

# Broker answers with a code of their own; every other failure is INTERNAL_SERVER_ERROR.
_OF_BROKERS = {
    2: Code.TOO_MANY_REQUESTS,
    3: Code.NOT_IMPLEMENTED,
    10: Code.MASTER_PERSISTENCE_TIMEOUT,
    11: Code.HA_NOT_AVAILABLE,
    12: Code.SLAVE_PERSISTENCE_TIMEOUT,
    13: Code.BAD_REQUEST,
    16: Code.FORBIDDEN,
    17: Code.TOPIC_NOT_FOUND,
    23: Code.ILLEGAL_FILTER_EXPRESSION,
    26: Code.CONSUMER_GROUP_NOT_FOUND,
    208: Code.INVALID_RECEIPT_HANDLE,
    209: Code.TOO_MANY_REQUESTS,
    604: Code.BAD_REQUEST,
}


class Refused(SprocketError):
    """A call that cannot be served, with the code for its client."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


def code_of_broker(code: int) -> Code:
    """Return the API's code for a broker's response code."""
    return _OF_BROKERS.get(code, Code.INTERNAL_SERVER_ERROR)


def code_of(error: SprocketError) -> Code:
    """Return the API's code for an error."""
    match error:
        case Refused():
            return error.code
        case TopicNotFound():
            return Code.TOPIC_NOT_FOUND
        case AuthenticationFailed():
            return Code.UNAUTHORIZED
        case AccessRefused() | TopicReadOnly():
            return Code.FORBIDDEN
        case BrokerError():
            return code_of_broker(error.code)
        case MessageTooLarge():
            return Code.MESSAGE_BODY_TOO_LARGE
        case InvalidName() | ConfigError() | ProtocolError():
            return Code.BAD_REQUEST
        case RequestTimeout():
            return Code.PROXY_TIMEOUT
        case BrokerBusy():
            return Code.TOO_MANY_REQUESTS
    return Code.INTERNAL_SERVER_ERROR


OK = Status(code=Code.OK, message="OK")


def status(code: Code, message: str = "") -> Any:
    """Return the status of an answer."""
    return Status(code=code, message=message or code.name)


def status_of(error: SprocketError) -> Any:
    """Return the status for an error."""
    return status(code_of(error), str(error))
