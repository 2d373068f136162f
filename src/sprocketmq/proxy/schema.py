"""The messages of ``apache.rocketmq.v2.MessagingService``, the API of RocketMQ's gRPC clients.

Their classes are made here from tables, in a descriptor pool of their own: an official client in the same process has the same names in
protobuf's default pool. A field is ``name:type=number``; ``?`` marks one whose absence can be told, ``[]`` a list, ``@group`` one of a
group of which only one is set. Enums are declared as int32, which is the same on the wire: ``codes.py`` has their values, and a number
that is not known stays what it is. Durations and timestamps are seconds and nanoseconds, as Google's.
"""

import re
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "apache.rocketmq.v2"
SERVICE = f"{PACKAGE}.MessagingService"

_MESSAGES = """
Timestamp           seconds:int64=1 nanos:int32=2
Duration            seconds:int64=1 nanos:int32=2
Status              code:int32=1 message:string=2
Resource            resource_namespace:string=1 name:string=2
Address             host:string=1 port:int32=2
Endpoints           scheme:int32=1 addresses:Address[]=2
Broker              name:string=1 id:int32=2 endpoints:Endpoints=3
MessageQueue        topic:Resource=1 id:int32=2 permission:int32=3 broker:Broker=4 accept_message_types:int32[]=5
Assignment          message_queue:MessageQueue=1
FilterExpression    type:int32=1 expression:string=2
SubscriptionEntry   topic:Resource=1 expression:FilterExpression=2
ExponentialBackoff  initial:Duration=1 max:Duration=2 multiplier:float=3
CustomizedBackoff   next:Duration[]=1
RetryPolicy         max_attempts:int32=1 exponential_backoff:ExponentialBackoff=2@strategy customized_backoff:CustomizedBackoff=3@strategy
Digest              type:int32=1 checksum:string=2
DeadLetterQueue     topic:string=1 message_id:string=2
SystemProperties    tag:string=1? keys:string[]=2 message_id:string=3 body_digest:Digest=4 body_encoding:int32=5 message_type:int32=6
                    born_timestamp:Timestamp=7 born_host:string=8 store_timestamp:Timestamp=9? store_host:string=10
                    delivery_timestamp:Timestamp=11? receipt_handle:string=12? queue_id:int32=13 queue_offset:int64=14?
                    invisible_duration:Duration=15? delivery_attempt:int32=16? message_group:string=17? trace_context:string=18?
                    orphaned_transaction_recovery_duration:Duration=19? dead_letter_queue:DeadLetterQueue=20? lite_topic:string=21?
                    priority:int32=22?
Message             topic:Resource=1 user_properties:map=2 system_properties:SystemProperties=3 body:bytes=4

UA                  language:int32=1 version:string=2 platform:string=3 hostname:string=4
Metric              on:bool=1 endpoints:Endpoints=2?
Publishing          topics:Resource[]=1 max_body_size:int32=2 validate_message_type:bool=3
Subscription        group:Resource=1? subscriptions:SubscriptionEntry[]=2 fifo:bool=3? receive_batch_size:int32=4?
                    long_polling_timeout:Duration=5? lite_subscription_quota:int32=6? max_lite_topic_size:int32=7?
Settings            client_type:int32=1? access_point:Endpoints=2? backoff_policy:RetryPolicy=3? request_timeout:Duration=4?
                    publishing:Publishing=5@pub_sub subscription:Subscription=6@pub_sub user_agent:UA=7 metric:Metric=8
                    client_properties:map=9
ThreadStackTrace    nonce:string=1 thread_stack_trace:string=2?
VerifyMessageResult nonce:string=1
RecoverOrphanedTransactionCommand  message:Message=1 transaction_id:string=2
PrintThreadStackTraceCommand  nonce:string=1
VerifyMessageCommand  nonce:string=1 message:Message=2
ReconnectEndpointsCommand  nonce:string=1
TelemetryCommand    status:Status=1? settings:Settings=2@command thread_stack_trace:ThreadStackTrace=3@command
                    verify_message_result:VerifyMessageResult=4@command
                    recover_orphaned_transaction_command:RecoverOrphanedTransactionCommand=5@command
                    print_thread_stack_trace_command:PrintThreadStackTraceCommand=6@command
                    verify_message_command:VerifyMessageCommand=7@command
                    reconnect_endpoints_command:ReconnectEndpointsCommand=8@command

QueryRouteRequest   topic:Resource=1 endpoints:Endpoints=2
QueryRouteResponse  status:Status=1 message_queues:MessageQueue[]=2
QueryAssignmentRequest   topic:Resource=1 group:Resource=2 endpoints:Endpoints=3
QueryAssignmentResponse  status:Status=1 assignments:Assignment[]=2
HeartbeatRequest    group:Resource=1? client_type:int32=2
HeartbeatResponse   status:Status=1
SendMessageRequest  messages:Message[]=1
SendResultEntry     status:Status=1 message_id:string=2 transaction_id:string=3 offset:int64=4 recall_handle:string=5
SendMessageResponse  status:Status=1 entries:SendResultEntry[]=2
ReceiveMessageRequest   group:Resource=1 message_queue:MessageQueue=2 filter_expression:FilterExpression=3 batch_size:int32=4
                    invisible_duration:Duration=5? auto_renew:bool=6 long_polling_timeout:Duration=7? attempt_id:string=8?
ReceiveMessageResponse  status:Status=1@content message:Message=2@content delivery_timestamp:Timestamp=3@content
AckMessageEntry     message_id:string=1 receipt_handle:string=2 lite_topic:string=3?
AckMessageRequest   group:Resource=1 topic:Resource=2 entries:AckMessageEntry[]=3
AckMessageResultEntry  message_id:string=1 receipt_handle:string=2 status:Status=3
AckMessageResponse  status:Status=1 entries:AckMessageResultEntry[]=2
ChangeInvisibleDurationRequest  group:Resource=1 topic:Resource=2 receipt_handle:string=3 invisible_duration:Duration=4
                    message_id:string=5 lite_topic:string=6? suspend:bool=7?
ChangeInvisibleDurationResponse  status:Status=1 receipt_handle:string=2
ForwardMessageToDeadLetterQueueRequest  group:Resource=1 topic:Resource=2 receipt_handle:string=3 message_id:string=4
                    delivery_attempt:int32=5 max_delivery_attempts:int32=6 lite_topic:string=7?
ForwardMessageToDeadLetterQueueResponse  status:Status=1
EndTransactionRequest  topic:Resource=1 message_id:string=2 transaction_id:string=3 resolution:int32=4 source:int32=5
                    trace_context:string=6
EndTransactionResponse  status:Status=1
RecallMessageRequest  topic:Resource=1 recall_handle:string=2
RecallMessageResponse  status:Status=1 message_id:string=2
NotifyClientTerminationRequest  group:Resource=1?
NotifyClientTerminationResponse  status:Status=1
"""

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "bool": _Field.TYPE_BOOL,
    "bytes": _Field.TYPE_BYTES,
    "float": _Field.TYPE_FLOAT,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "string": _Field.TYPE_STRING,
}
_FIELD = re.compile(r"(\w+):(\w+)(\[\])?=(\d+)(\?)?(?:@(\w+))?")


def _add(file: descriptor_pb2.FileDescriptorProto, name: str, fields: list[str]) -> None:
    message = file.message_type.add(name=name)
    groups: dict[str, int] = {}
    optional = []
    for text in fields:
        match = _FIELD.fullmatch(text)
        assert match is not None, text
        field_name, kind, several, number, may_be_absent, group = match.groups()
        field = message.field.add(name=field_name, number=int(number), label=_Field.LABEL_REPEATED if several else _Field.LABEL_OPTIONAL)
        if kind == "map":
            entry = message.nested_type.add(name=f"{field_name.title().replace('_', '')}Entry")
            entry.options.map_entry = True
            for position, part in enumerate(("key", "value"), 1):
                entry.field.add(name=part, number=position, label=_Field.LABEL_OPTIONAL, type=_Field.TYPE_STRING)
            field.label, field.type = _Field.LABEL_REPEATED, _Field.TYPE_MESSAGE
            field.type_name = f".{PACKAGE}.{name}.{entry.name}"
        elif kind in _SCALARS:
            field.type = _SCALARS[kind]
        else:
            field.type, field.type_name = _Field.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
        if group:
            if group not in groups:
                groups[group] = len(message.oneof_decl)
                message.oneof_decl.add(name=group)
            field.oneof_index = groups[group]
        elif may_be_absent:
            optional.append(field)
    for field in optional:  # protobuf requires these groups of one after the others
        field.proto3_optional = True
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{field.name}")


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="sprocketmq/messaging.proto", package=PACKAGE, syntax="proto3")
    rows: list[list[str]] = []
    for line in _MESSAGES.splitlines():
        if line.strip():
            words = line.split()
            if line[0].isspace():
                rows[-1] += words
            else:
                rows.append(words)
    for name, *fields in rows:
        _add(file, name, fields)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = pool.FindFileByName(file.name).message_types_by_name
    return {name: message_factory.GetMessageClass(descriptor) for name, descriptor in found.items()}


# Message classes by name. They are made at run time, so type checkers know nothing of their fields.
MESSAGES = _classes()

Proto = Any

Address = MESSAGES["Address"]
Assignment = MESSAGES["Assignment"]
AckMessageResponse = MESSAGES["AckMessageResponse"]
AckMessageResultEntry = MESSAGES["AckMessageResultEntry"]
Broker = MESSAGES["Broker"]
ChangeInvisibleDurationResponse = MESSAGES["ChangeInvisibleDurationResponse"]
Digest = MESSAGES["Digest"]
Duration = MESSAGES["Duration"]
Endpoints = MESSAGES["Endpoints"]
Message = MESSAGES["Message"]
MessageQueue = MESSAGES["MessageQueue"]
QueryAssignmentResponse = MESSAGES["QueryAssignmentResponse"]
QueryRouteResponse = MESSAGES["QueryRouteResponse"]
RecallMessageResponse = MESSAGES["RecallMessageResponse"]
ReceiveMessageResponse = MESSAGES["ReceiveMessageResponse"]
Resource = MESSAGES["Resource"]
SendMessageResponse = MESSAGES["SendMessageResponse"]
SendResultEntry = MESSAGES["SendResultEntry"]
Settings = MESSAGES["Settings"]
Status = MESSAGES["Status"]
SystemProperties = MESSAGES["SystemProperties"]
TelemetryCommand = MESSAGES["TelemetryCommand"]
Timestamp = MESSAGES["Timestamp"]


def duration(seconds: float) -> Proto:
    """Return a time span."""
    whole, rest = divmod(round(seconds * 1_000_000_000), 1_000_000_000)
    return Duration(seconds=whole, nanos=rest)


def seconds_of(span: Proto) -> float:
    """Return the seconds of a time span."""
    return float(span.seconds + span.nanos / 1_000_000_000)


def timestamp(ms: int) -> Proto:
    """Return a moment, given in milliseconds since the epoch."""
    return Timestamp(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000)


def ms_of(moment: Proto) -> int:
    """Return a moment in milliseconds since the epoch."""
    return int(moment.seconds * 1000 + moment.nanos // 1_000_000)
