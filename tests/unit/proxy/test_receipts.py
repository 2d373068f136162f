"""Receipt handles, and what brokers say of the offsets of a pop."""

import pytest

from sprocketmq.proxy.codes import Code, Refused
from sprocketmq.proxy.receipts import NORMAL, RETRY, RETRY_V2, Receipt, deliveries_of, kind_of, offsets_of

HANDLE = "7 1795229533001 60000 3 0 broker-a 2 9 123456"


def test_a_handle_is_read_and_written():
    receipt = Receipt.parse(HANDLE)
    assert receipt == (7, 1795229533001, 60000, 3, NORMAL, "broker-a", 2, 9, 123456)
    assert str(receipt) == HANDLE
    assert receipt.extra_info == HANDLE.removesuffix(" 123456")
    assert receipt.expires_ms == 1795229593001


def test_the_topic_that_holds_the_message():
    receipt = Receipt.parse(HANDLE)
    assert receipt.topic("g", "t") == "t"
    assert receipt._replace(kind=RETRY).topic("g", "t") == "%RETRY%g_t"
    assert receipt._replace(kind=RETRY_V2).topic("g", "t") == "%RETRY%g+t"
    assert [kind_of(topic) for topic in ("t", "%RETRY%g_t", "%RETRY%g+t")] == [NORMAL, RETRY, RETRY_V2]


def test_a_changed_invisible_time_makes_a_new_handle():
    receipt = Receipt.parse(HANDLE).renewed(1795229534000, 10000, 3)
    assert str(receipt) == "9 1795229534000 10000 3 0 broker-a 2 9 123456"
    assert Receipt.parse(HANDLE).renewed(1795229533001, 10000, 999).start_offset == 7


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        HANDLE.removesuffix(" 123456"),
        HANDLE + " 1",
        HANDLE.replace("broker-a", ""),
        HANDLE.replace("60000", "-60000"),
        HANDLE.replace(" 0 broker", " 5 broker"),
        HANDLE.replace("1795229533001", "9" * 30),
        HANDLE.replace("7 ", "٧ "),
        HANDLE + "0" * 2000,
    ],
)
def test_what_is_no_handle(text):
    with pytest.raises(Refused) as refused:
        Receipt.parse(text)
    assert refused.value.code == Code.INVALID_RECEIPT_HANDLE


def test_offsets_and_deliveries():
    assert offsets_of("") == {}
    assert offsets_of("0 2 7;1 0 5") == {(0, 2): [7], (1, 0): [5]}
    assert offsets_of("0 2 7,8,10") == {(0, 2): [7, 8, 10]}
    assert deliveries_of("0 qo2%7 3;0 2 0") == {(2, 7): 3}
    for text in ("0 2", "0 2 x", "a 2 1"):
        with pytest.raises(ValueError, match=r"unpack|invalid literal"):
            offsets_of(text)
