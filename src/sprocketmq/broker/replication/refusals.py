"""The requests that a slave refuses: everything that would change its log or its tables, which are copies of the master's."""

from collections.abc import Callable

from sprocketmq.broker.replication.roles import BrokerRole
from sprocketmq.net.server import ServerConnection
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import Command

_CODES: dict[int, ResponseCode] = {
    RequestCode.SEND_MESSAGE: ResponseCode.SERVICE_NOT_AVAILABLE,
    RequestCode.SEND_MESSAGE_V2: ResponseCode.SERVICE_NOT_AVAILABLE,
    RequestCode.SEND_BATCH_MESSAGE: ResponseCode.SERVICE_NOT_AVAILABLE,
    RequestCode.SEND_REPLY_MESSAGE: ResponseCode.SERVICE_NOT_AVAILABLE,
    RequestCode.SEND_REPLY_MESSAGE_V2: ResponseCode.SERVICE_NOT_AVAILABLE,
    RequestCode.CONSUMER_SEND_MSG_BACK: ResponseCode.SYSTEM_ERROR,
    RequestCode.POP_MESSAGE: ResponseCode.SERVICE_NOT_AVAILABLE,
    RequestCode.ACK_MESSAGE: ResponseCode.SERVICE_NOT_AVAILABLE,
    RequestCode.BATCH_ACK_MESSAGE: ResponseCode.SERVICE_NOT_AVAILABLE,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: ResponseCode.SERVICE_NOT_AVAILABLE,
    RequestCode.PEEK_MESSAGE: ResponseCode.SERVICE_NOT_AVAILABLE,
    RequestCode.NOTIFICATION: ResponseCode.SERVICE_NOT_AVAILABLE,
    RequestCode.POLLING_INFO: ResponseCode.SERVICE_NOT_AVAILABLE,
    RequestCode.RECALL_MESSAGE: ResponseCode.SLAVE_NOT_AVAILABLE,
    RequestCode.END_TRANSACTION: ResponseCode.SLAVE_NOT_AVAILABLE,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: ResponseCode.SLAVE_NOT_AVAILABLE,
    RequestCode.UPDATE_AND_CREATE_TOPIC: ResponseCode.NO_PERMISSION,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: ResponseCode.NO_PERMISSION,
    RequestCode.DELETE_TOPIC_IN_BROKER: ResponseCode.NO_PERMISSION,
    RequestCode.CLEAN_UNUSED_TOPIC: ResponseCode.NO_PERMISSION,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: ResponseCode.NO_PERMISSION,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: ResponseCode.NO_PERMISSION,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: ResponseCode.NO_PERMISSION,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: ResponseCode.NO_PERMISSION,
    RequestCode.SET_MESSAGE_REQUEST_MODE: ResponseCode.NO_PERMISSION,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: ResponseCode.NO_PERMISSION,
    RequestCode.CLONE_GROUP_OFFSET: ResponseCode.NO_PERMISSION,
}


def slave_refusals(role: BrokerRole) -> dict[int, Callable[[ServerConnection, Command], None]]:
    """Return the handlers of a slave for the requests that it refuses."""

    def refuse(conn: ServerConnection, command: Command) -> None:
        remark = f"service not available now. It may be caused by: this broker is a slave, send this request to {role.master}"
        conn.respond(command, _CODES[command.code], remark=remark)

    return dict.fromkeys(map(int, _CODES), refuse)
