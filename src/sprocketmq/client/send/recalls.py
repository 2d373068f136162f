"""Recalls messages that wait for their delivery time."""

from sprocketmq.client.instance import Instance, response_error
from sprocketmq.errors import ConfigError, ConnectionLost, MaybeStoredError, ProtocolError, RequestTimeout, RetriableError
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import to_ext
from sprocketmq.protocol.headers import RecallMessage
from sprocketmq.protocol.recall import RecallHandle


async def recall(instance: Instance, group: str, recall_handle: str, timeout_s: float) -> str:
    """Take back the message that a handle names; see ``Producer.recall``."""
    given: object = recall_handle
    if not isinstance(given, str) or not given:
        raise ConfigError(f"a recall handle is the recall_handle of a SendResult, not {recall_handle!r}")
    try:
        handle = RecallHandle.parse(recall_handle)
    except ProtocolError as e:
        raise ConfigError(str(e)) from None
    route = await instance.route(handle.topic)
    address = route.masters.get(handle.broker_name)
    if address is None:
        route = await instance.fetch_route(handle.topic) or route
        address = route.masters.get(handle.broker_name)
    if address is None:
        raise RetriableError(f"broker {handle.broker_name!r}, which has the message, has no master now")
    header = RecallMessage(topic=handle.topic, recall_handle=recall_handle, producer_group=group, broker_name=handle.broker_name)
    try:
        answer = await instance.ask(address, RequestCode.RECALL_MESSAGE, ext=to_ext(header), timeout_s=timeout_s)
    except (RequestTimeout, ConnectionLost) as e:
        raise MaybeStoredError(f"broker {handle.broker_name} has not answered to the recall: recall the message again", cause=e) from e
    if answer.code != ResponseCode.SUCCESS:
        raise response_error(answer, address, handle.topic)
    return handle.uniq_key
