"""The stream between slave and master, cut anywhere; what is no such stream; the proof of a shared secret."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sprocketmq.errors import RemoteProtocolError
from sprocketmq.protocol.replication import (
    CHALLENGE_BYTES,
    MASTER_PROOF_BYTES,
    SLAVE_PROOF_BYTES,
    MasterHandshake,
    ReportReader,
    SlaveHandshake,
    TransferReader,
    encode_report,
    encode_transfer_head,
)

cuts = st.lists(st.integers(1, 40), max_size=60)


def pieces(data, sizes):
    """Cut ``data`` into pieces of these sizes, and the rest."""
    for size in sizes:
        if data:
            yield data[:size]
            data = data[size:]
    if data:
        yield data


def received(reader, data):
    """Give ``data`` to a transfer reader as reads of a socket do, and return what it makes of them."""
    found = []
    while data:
        buffer = reader.get_buffer()
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        found += [(log_offset, bytes(piece)) for log_offset, piece in reader.received(count)]
        data = data[count:]
    return found


def joined(found):
    """Join pieces that follow one another, so that the cuts do not matter."""
    result = []
    for log_offset, data in found:
        if data and result and result[-1][1] and result[-1][0] + len(result[-1][1]) == log_offset:
            result[-1] = (result[-1][0], result[-1][1] + data)
        else:
            result.append((log_offset, data))
    return result


def test_reports_and_transfers_have_the_references_bytes():
    assert encode_report(152401).hex() == "0000000000025351"
    assert (encode_transfer_head(131072, 21329) + b"log").hex() == "000000000002000000005351" + b"log".hex()


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=30), cuts)
def test_reports_are_the_same_however_they_are_cut(values, sizes):
    data = b"".join(map(encode_report, values))
    reader = ReportReader()
    assert [value for piece in pieces(data, sizes) for value in reader.received(piece)] == values


@given(st.lists(st.binary(max_size=60), max_size=20), cuts, st.integers(12, 50))
def test_transfers_are_the_same_however_they_are_cut(bodies, sizes, buffer_bytes):
    stream, expected, log_offset = b"", [], 1000
    for body in bodies:
        stream += encode_transfer_head(log_offset, len(body)) + body
        expected.append((log_offset, body))
        log_offset += len(body)
    reader = TransferReader(bytearray(buffer_bytes))
    found = [one for piece in pieces(stream, sizes) for one in received(reader, piece)]
    assert joined(found) == joined(expected)
    assert len(reader.get_buffer()) > 0


def test_a_piece_of_log_is_a_view_of_the_buffer():
    buffer = bytearray(64)
    reader = TransferReader(buffer)
    reader.get_buffer()[:17] = encode_transfer_head(5, 5) + b"bytes"
    ((log_offset, piece),) = reader.received(17)
    buffer[12] = ord("B")
    assert (log_offset, bytes(piece)) == (5, b"Bytes")


@pytest.mark.parametrize(
    ("head", "says"),
    [
        (encode_transfer_head(-1, 32), "give it the same ha_secret"),
        (encode_transfer_head(-2, 32), "not the HA port"),
        (encode_transfer_head(0, -1), "not the HA port"),
        (encode_transfer_head(-(1 << 63), 0), "not the HA port"),
        (b"HTTP/1.1 400 Bad Request", "of 775960628 bytes|not the HA port"),
    ],
)
def test_what_no_master_sends_is_refused(head, says):
    reader = TransferReader(bytearray(64))
    if head.startswith(b"HTTP"):  # a positive offset and size: noticed by whoever knows which offset comes next
        assert received(reader, head)[0][0] == int.from_bytes(b"HTTP/1.1", "big")
        return
    with pytest.raises(RemoteProtocolError, match=says):
        received(reader, head)


# --- the secret ---------------------------------------------------------------------------------------------------------


def shake(master, slave):
    challenge = master.challenge()
    assert len(challenge) == CHALLENGE_BYTES
    proof = slave.prove(challenge)
    assert len(proof) == SLAVE_PROOF_BYTES
    answer = master.answer(proof)
    assert len(answer) == MASTER_PROOF_BYTES
    slave.check(answer)


def test_two_sides_that_know_the_secret_accept_each_other():
    shake(MasterHandshake("a secret"), SlaveHandshake("a secret"))


def test_a_slave_with_another_secret_is_refused():
    with pytest.raises(RemoteProtocolError, match="another shared secret") as raised:
        shake(MasterHandshake("a secret"), SlaveHandshake("other secret"))
    assert "a secret" not in str(raised.value)


def test_a_slave_without_the_secret_is_refused():
    with pytest.raises(RemoteProtocolError, match="does not prove"):
        MasterHandshake("a secret").answer(encode_report(0) * (SLAVE_PROOF_BYTES // 8))


def test_a_master_that_only_claims_to_know_the_secret_is_refused():
    slave = SlaveHandshake("a secret")
    slave.prove(MasterHandshake("whatever").challenge())
    with pytest.raises(RemoteProtocolError, match="another shared secret"):
        slave.check(encode_transfer_head(-2, 32) + bytes(32))


def test_neither_the_slaves_proof_nor_an_old_answer_can_be_used_again():
    nonce = bytes(range(32))
    proof = SlaveHandshake("a secret", nonce).prove(MasterHandshake("a secret", bytes(32)).challenge())
    with pytest.raises(RemoteProtocolError):
        MasterHandshake("a secret").answer(proof)  # another nonce of the master
    slave = SlaveHandshake("a secret", nonce)
    slave.prove(MasterHandshake("a secret", bytes(32)).challenge())
    with pytest.raises(RemoteProtocolError):
        slave.check(encode_transfer_head(-2, 32) + proof[-32:])  # the slave's own proof, sent back


def test_a_master_without_the_secret_is_not_answered():
    with pytest.raises(RemoteProtocolError, match="does not ask"):
        SlaveHandshake("a secret").prove(encode_transfer_head(0, 32) + bytes(32))
