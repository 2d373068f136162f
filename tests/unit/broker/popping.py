"""A POP client that speaks single requests."""

from sprocketmq.protocol.records import decode_records

INVISIBLE_S = 30


def pop_ext(broker, topic="orders", *, group="g", queue=0, count=16, wait_ms=0, mode=0, **fields):
    return {
        "consumerGroup": group, "topic": topic, "queueId": str(queue), "maxMsgNums": str(count), "invisibleTime": str(INVISIBLE_S * 1000),
        "pollTime": str(wait_ms), "bornTime": str(broker.clock.time_ms()), "initMode": str(mode), "expType": "TAG", "exp": "*",
        "order": "false", **fields,
    }  # fmt: skip


class Popper:
    """A POP client: reads answers as Apache's Java client does."""

    def __init__(self, ask):
        self.ask = ask

    async def pop(self, topic="orders", **options):
        return self.read(await self.ask(200050, pop_ext(self.ask.broker, topic, **options)))

    def read(self, answer):
        """Return pairs of body and receipt handle."""
        if answer.code == 210:
            assert {answer.ext[name] for name in ("popTime", "invisibleTime", "reviveQid", "restNum")} == {"0"}
            return []
        assert answer.code == 0, answer.remark
        ext = answer.ext
        starts = {int(item.split(" ")[1]): item.split(" ")[2] for item in ext["startOffsetInfo"].split(";")}
        places = {int(item.split(" ")[1]): item.split(" ")[2].split(",") for item in ext["msgOffsetInfo"].split(";")}
        found, seen = [], {}
        for message in decode_records(answer.body):
            index = seen[message.queue_id] = seen.get(message.queue_id, -1) + 1
            handle = message.properties.get("POP_CK") or " ".join(
                [starts[message.queue_id], ext["popTime"], ext["invisibleTime"], ext["reviveQid"], "0", "broker-a", str(message.queue_id),
                 places[message.queue_id][index]]
            )  # fmt: skip
            assert int(places[message.queue_id][index]) == message.queue_offset
            found.append((message, handle))
        return found

    def receipt_ext(self, handle, topic="orders", group="g"):
        queue, offset = handle.split(" ")[6:8]
        return {"consumerGroup": group, "topic": topic, "queueId": queue, "extraInfo": handle + " ", "offset": offset}

    async def ack(self, handle, **options):
        return (await self.ask(200051, self.receipt_ext(handle, **options))).code

    async def change(self, handle, seconds, **options):
        return await self.ask(200053, {**self.receipt_ext(handle, **options), "invisibleTime": str(round(seconds * 1000))})
