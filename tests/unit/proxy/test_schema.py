"""Our tables of the API beside the descriptors of Apache's own Python client."""

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto

from sprocketmq.proxy import codes
from sprocketmq.proxy.schema import MESSAGES, duration, ms_of, seconds_of, timestamp

official = pytest.importorskip("rocketmq.grpc_protocol")
KINDS = {value: name.removeprefix("TYPE_") for name, value in vars(FieldDescriptor).items() if name.startswith("TYPE_")}
KINDS[FieldDescriptor.TYPE_ENUM] = "INT32"  # the same on the wire
# Fields of commands that are for consumers of lite topics only.
LITE = {"notify_unsubscribe_lite_command"}
# What this version of the client does not have yet.
NEWER = {("Settings", "client_properties")}


def fields(descriptor):
    proto = DescriptorProto()
    descriptor.CopyToProto(proto)
    repeated = {field.name for field in proto.field if field.label == FieldDescriptorProto.LABEL_REPEATED}
    return {
        field.name: (field.number, KINDS[field.type], field.name in repeated, field.containing_oneof and field.containing_oneof.name)
        for field in descriptor.fields
        if field.name not in LITE
    }


def official_descriptors():
    from rocketmq.grpc_protocol import definition_pb2, service_pb2

    return {**definition_pb2.DESCRIPTOR.message_types_by_name, **service_pb2.DESCRIPTOR.message_types_by_name}


@pytest.mark.parametrize("name", sorted(set(MESSAGES) - {"Timestamp", "Duration"}))
def test_fields_are_those_of_the_official_client(name):
    ours = fields(MESSAGES[name].DESCRIPTOR)
    theirs = fields(official_descriptors()[name])
    assert {field: facts for field, facts in ours.items() if (name, field) not in NEWER} == theirs


@pytest.mark.parametrize("ours", [codes.Code, codes.ClientType, codes.MessageType, codes.Permission])
def test_numbers_are_those_of_the_official_client(ours):
    from rocketmq.grpc_protocol import definition_pb2

    theirs = dict(definition_pb2.DESCRIPTOR.enum_types_by_name[ours.__name__].values_by_name)
    assert {each.name: each.value for each in ours} == {each.name: theirs[each.name].number for each in ours}


def test_both_can_be_used_in_one_process():
    from rocketmq.grpc_protocol import definition_pb2

    ours = MESSAGES["Message"](body=b"x", user_properties={"a": "b"})
    ours.system_properties.tag = "t"
    theirs = definition_pb2.Message.FromString(ours.SerializeToString())
    assert (theirs.body, dict(theirs.user_properties), theirs.system_properties.tag) == (b"x", {"a": "b"}, "t")
    assert theirs.system_properties.HasField("tag")
    assert not theirs.system_properties.HasField("message_group")


@pytest.mark.parametrize("seconds", [0, 0.001, 20, 3599.999])
def test_time_spans(seconds):
    assert seconds_of(duration(seconds)) == pytest.approx(seconds)


def test_moments():
    assert ms_of(timestamp(1_795_229_533_001)) == 1_795_229_533_001
