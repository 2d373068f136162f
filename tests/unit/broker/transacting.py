"""A producer of transactions that speaks single requests."""

from sprocketmq.protocol.codes import RequestCode

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
HALF = "TRAN_MSG\x01true\x02PGROUP\x01pg\x02"


class Transactions:
    """A producer of transactions that speaks single requests."""

    def __init__(self, ask):
        self.ask = ask

    async def begin(self, body=b"paid", topic="orders", *, queue=1, properties="", **fields):
        """Send a half message and return the fields that tell its outcome."""
        answer = await self.ask.send(topic, body, queue=queue, properties=HALF + properties, **{"f": "4", **fields})
        assert answer.code == 0, answer.remark
        return {
            "producerGroup": "pg",
            "topic": topic,
            "tranStateTableOffset": answer.ext["queueOffset"],
            "commitLogOffset": str(int(answer.ext["msgId"][16:], 16)),
            "msgId": answer.ext["transactionId"],
            "transactionId": answer.ext["transactionId"],
        }

    async def end(self, half, outcome, **fields):
        return await self.ask(RequestCode.END_TRANSACTION, {**half, "commitOrRollback": str(outcome), **fields})

    async def send(self, outcome, *args, **options):
        half = await self.begin(*args, **options)
        answer = await self.end(half, outcome)
        assert answer.code == 0, answer.remark
        return half
