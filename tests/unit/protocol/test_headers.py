"""Typed headers: every struct travels through both serialisations and comes back equal."""

import inspect
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sprocketmq.errors import RemoteProtocolError
from sprocketmq.protocol import headers
from sprocketmq.protocol.codes import SerializeType
from sprocketmq.protocol.command import decode_command, encode_head, to_ext
from sprocketmq.protocol.ranges import Int32, Int64

KINDS = [
    kind for _, kind in inspect.getmembers(headers, inspect.isclass) if issubclass(kind, msgspec.Struct) and kind is not msgspec.Struct
]

# A binary header cannot tell an empty value from none, so generated text is never empty.
BY_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
    bool: st.booleans(),
    Int32: st.integers(-(2**31), 2**31 - 1),
    Int64: st.integers(-(2**63), 2**63 - 1),
    type(None): st.none(),
}


def values_of(annotation: Any) -> st.SearchStrategy[Any]:
    if annotation in BY_TYPE:
        return BY_TYPE[annotation]
    return st.one_of([BY_TYPE[part] for part in get_args(annotation)])


def instances(kind: type[msgspec.Struct]) -> st.SearchStrategy[msgspec.Struct]:
    return st.builds(kind, **{name: values_of(annotation) for name, annotation in inspect.get_annotations(kind).items()})


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("serialize", SerializeType)
def test_a_header_comes_back_as_it_was(kind, serialize):
    @given(instances(kind))
    def check(header: msgspec.Struct) -> None:
        ext = to_ext(header)
        assert all(type(value) is str for value in ext.values())
        command = decode_command(encode_head(1, opaque=1, ext=ext, serialize=serialize)[4:])
        assert command.header(kind) == header
        assert command.ext == ext
        assert command.header(kind) == header  # the same from the map of fields

    check()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_unknown_fields_are_ignored_and_required_ones_named(kind):
    required = kind.__struct_encode_fields__[: len(kind.__struct_fields__) - len(kind.__struct_defaults__)]
    fields = dict.fromkeys(required, "1")
    decode_command(encode_head(1, opaque=1, ext={**fields, "somethingNew": "x"})[4:]).header(kind)
    for name in required:
        rest = {other: value for other, value in fields.items() if other != name}
        with pytest.raises(RemoteProtocolError, match=f"`{name}`"):
            decode_command(encode_head(1, opaque=1, ext=rest)[4:]).header(kind)
