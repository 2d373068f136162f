"""Pops of 32 messages and acknowledgements of whole pops, as benchmarks send them over a connection of their own."""

import base64
import json
import time
from collections.abc import Iterator

from sprocketmq.net.client import Connection
from sprocketmq.protocol.command import Command

POP, BATCH_ACK = 200050, 200151
FOUND = 0


def receipts(ext: dict[str, str]) -> Iterator[tuple[int, int, list[int]]]:
    """Yield queue, start offset and offsets of an answer."""
    starts = {item.split(" ")[1]: int(item.split(" ")[2]) for item in ext["startOffsetInfo"].split(";")}
    for item in ext["msgOffsetInfo"].split(";"):
        _, queue, offsets = item.split(" ")
        yield int(queue), starts[queue], [int(offset) for offset in offsets.split(",")]


def acknowledged(group: str, topic: str, broker: str, ext: dict[str, str]) -> bytes:
    """Return the body of one acknowledgement for all messages of an answer."""
    acks = []
    for queue, start, offsets in receipts(ext):
        bits = 0
        for offset in offsets:
            bits |= 1 << offset - start
        text = base64.b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode()
        fields = {"c": group, "t": topic, "r": "0", "so": start, "q": queue, "rq": int(ext["reviveQid"])}
        acks.append({**fields, "pt": int(ext["popTime"]), "it": int(ext["invisibleTime"]), "b": text})
    return json.dumps({"brokerName": broker, "acks": acks}).encode()


async def pop(conn: Connection, group: str, topic: str, *, invisible_ms: int = 60_000) -> Command | None:
    """Pop up to 32 messages; None when there were none."""
    fields = {"consumerGroup": group, "topic": topic, "queueId": "-1", "maxMsgNums": "32", "pollTime": "5000"}
    fields["invisibleTime"] = str(invisible_ms)
    more = {"bornTime": str(int(time.time() * 1000)), "initMode": "0", "expType": "TAG", "exp": "*", "order": "false"}
    answer = await conn.ask(POP, ext={**fields, **more}, timeout_s=30)
    return answer if answer.code == FOUND else None
