// Sends, receives and ends transactions with Apache's client for Node: `node official.js ARGUMENTS`, which are JSON of `endpoint`, `topics`
// (normal, fifo, delay, transaction) and `groups` of the same names and of `push`, `again` and `dead`. Prints one line of JSON. The client is
// found through NODE_PATH.
const { ConsumeResult, Producer, PushConsumer, SimpleConsumer } = require('rocketmq-client-nodejs');
const { TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const { endpoint, topics, groups } = JSON.parse(process.argv[2]);
const silent = { debug() {}, info() {}, warn() {}, error() {}, log() {}, close() {} };
const common = { endpoints: endpoint, namespace: '', logger: silent };
const INVISIBLE_MS = 10_000;
const DEADLINE_MS = 60_000;

const seen = message => ({
  id: message.messageId, body: message.body.toString(), tag: message.tag, keys: message.keys, group: message.messageGroup,
  properties: Object.fromEntries(message.properties), attempt: message.deliveryAttempt,
});

// Receives `count` messages and acknowledges them, but for those with a body of `kept`.
async function receive(topic, consumerGroup, count, kept = []) {
  const consumer = new SimpleConsumer({ ...common, consumerGroup, subscriptions: new Map([[topic, '*']]), awaitDuration: 5_000 });
  await consumer.startup();
  const found = [];
  for (const until = Date.now() + DEADLINE_MS; found.length < count && Date.now() < until;) {
    for (const message of await consumer.receive(16, INVISIBLE_MS)) {
      found.push(seen(message));
      if (!kept.includes(message.body.toString())) await consumer.ack(message);
    }
  }
  await consumer.shutdown();
  return found;
}

// Listens until `count` messages were handled; `failing` is not at its first `failures` deliveries.
async function listen(topic, consumerGroup, count, failing, failures = 1) {
  const found = [];
  let finished;
  const done = new Promise(resolve => { finished = resolve; });
  const consumer = new PushConsumer({
    ...common, consumerGroup, subscriptions: new Map([[topic, '*']]),
    messageListener: {
      async consume(message) {
        found.push(seen(message));
        if (found.length === count) finished();
        return message.body.toString() === failing && message.deliveryAttempt <= failures ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
      },
    },
  });
  await consumer.startup();
  await Promise.race([done, new Promise(resolve => { setTimeout(resolve, DEADLINE_MS); })]);
  await consumer.shutdown();
  return found;
}

async function main() {
  const asked = [];
  const checker = {
    async check(message) {
      asked.push(message.body.toString());
      return TransactionResolution.COMMIT;
    },
  };
  // One topic at most: with several, the client misses its settings when they come before the last route, and waits for five minutes.
  const producer = new Producer({ ...common, topic: topics.transaction, checker });
  await producer.startup();
  const sent = [];
  for (let n = 0; n < 4; n++) {
    const receipt = await producer.send({
      topic: topics.normal, body: Buffer.from(`m${n}`), tag: 't', keys: [`k${n}`], properties: new Map([['n', String(n)]]),
    });
    sent.push(receipt.messageId);
  }
  const normal = await receive(topics.normal, groups.normal, 4);
  const pushed = await listen(topics.normal, groups.push, 5, 'm2');
  const again = await receive(topics.normal, groups.again, 5, ['m3']);
  const dead = await listen(topics.normal, groups.dead, 5, 'm1', 2);

  for (let n = 0; n < 5; n++) {
    for (const messageGroup of ['x', 'y']) await producer.send({ topic: topics.fifo, body: Buffer.from(`${messageGroup}${n}`), messageGroup });
  }
  const fifo = await receive(topics.fifo, groups.fifo, 10);

  const began = Date.now();
  const recalled = await producer.send({ topic: topics.delay, body: Buffer.from('recalled'), delay: 3_000 });
  await producer.recallMessage(topics.delay, recalled.recallHandle);
  await producer.send({ topic: topics.delay, body: Buffer.from('later'), delay: 5_000 });
  const delayed = await receive(topics.delay, groups.delay, 1);
  const waited = Date.now() - began;

  for (const [body, end] of [['kept', 'commit'], ['dropped', 'rollback'], ['asked', '']]) {
    const transaction = producer.beginTransaction();
    await producer.send({ topic: topics.transaction, body: Buffer.from(body) }, transaction);
    if (end) await transaction[end]();
  }
  const ended = await receive(topics.transaction, groups.transaction, 2);
  await producer.shutdown();
  console.log(JSON.stringify({ sent, normal, pushed, again, dead, fifo, delayed, waited, asked, ended }));
}

main().then(() => process.exit(0), error => { console.error(error); process.exit(1); });
