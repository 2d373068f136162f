import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import com.alibaba.fastjson2.JSONWriter;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Drives Apache RocketMQ's own Java client for a Python test: one JSON command a line on standard input, one JSON answer a line on
 * standard output. Whatever else would print to standard output (the client's logger does) goes to standard error.
 */
@SuppressWarnings("deprecation")
public final class Driver {
    /** What a request of these clients may take: servers of tests share two processors and a disk, and the client's 3 s are not enough. */
    static final int PATIENCE_MS = 60_000;
    private static final Map<String, DefaultMQProducer> PRODUCERS = new HashMap<>();
    private static final Map<String, DefaultMQPullConsumer> PULLERS = new HashMap<>();
    private static final Consumers CONSUMERS = new Consumers();
    private static final Requests REQUESTS = new Requests();
    private static final Transactions TRANSACTIONS = new Transactions();

    private Driver() {
    }

    public static void main(String[] args) throws Exception {
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String line;
        while ((line = commands.readLine()) != null) {
            JSONObject command = JSON.parseObject(line);
            JSONObject answer = new JSONObject();
            answer.put("id", command.getIntValue("id"));
            try {
                answer.put("value", run(command));
            } catch (Throwable failure) {
                StringWriter trace = new StringWriter();
                failure.printStackTrace(new PrintWriter(trace));
                answer.put("error", failure.getClass().getSimpleName() + ": " + failure.getMessage());
                answer.put("trace", trace.toString());
            }
            answers.println(answer.toString(JSONWriter.Feature.WriteNulls));
        }
        CONSUMERS.stopAll();
        PULLERS.values().forEach(DefaultMQPullConsumer::shutdown);
        PRODUCERS.values().forEach(DefaultMQProducer::shutdown);
        Load.shutdown();
        System.exit(0);
    }

    private static Object run(JSONObject command) throws Exception {
        switch (command.getString("op")) {
            case "ping":
                return System.getProperty("java.version");
            case "send":
                return send(command);
            case "send_by_key":
                return sendByKey(command);
            case "send_traced":
                return sendTraced(command);
            case "send_batch":
                return describe(producer(command).send(messages(command.getJSONArray("messages"))));
            case "send_auto_batch":
                return sendAutoBatch(command);
            case "query":
                return query(command);
            case "view":
                return describe((MessageExt) producer(command).viewMessage(command.getString("topic"), command.getString("msg_id")));
            case "consumer_start":
                return CONSUMERS.start(command);
            case "consumer_take":
                return CONSUMERS.take(command);
            case "consumer_state":
                return CONSUMERS.state(command);
            case "consumer_stop":
                return CONSUMERS.stop(command);
            case "request":
                return Requests.request(producer(command), command);
            case "replier_start":
                return REQUESTS.start(command);
            case "replier_stop":
                return REQUESTS.stop(command);
            case "send_timed":
                return sendTimed(producer(command), command);
            case "recall":
                return producer(command).recallMessage(command.getString("topic"), command.getString("handle"));
            case "transactions_start":
                return TRANSACTIONS.start(command);
            case "transactions_asked":
                return TRANSACTIONS.asked(command);
            case "transactions_stop":
                return TRANSACTIONS.stop(command);
            case "sign":
                return Login.sign(command);
            case "queues":
                return queues(command);
            case "pull":
                return pull(command);
            case "offsets":
                return offsets(command);
            case "mqadmin":
                return admin(command.getJSONArray("arguments").toArray(String.class));
            default:
                return Load.run(command);
        }
    }

    private static DefaultMQProducer producer(JSONObject command) throws Exception {
        String key = Login.key(command) + " " + command.getString("namespace");
        DefaultMQProducer producer = PRODUCERS.get(key);
        if (producer == null) {
            producer = new DefaultMQProducer("interop_java_producer", Login.hook(command));
            producer.setNamesrvAddr(command.getString("namesrv"));
            if (command.getString("namespace") != null) {
                producer.setNamespace(command.getString("namespace"));
            }
            separate(producer, command);
            patient(producer);
            producer.start();
            PRODUCERS.put(key, producer);
        }
        return producer;
    }

    /**
     * Clients of equal names share one set of connections and the hook of the first: those that sign have a name of their own.
     */
    private static void separate(ClientConfig client, JSONObject command) {
        if (command.getString("access_key") != null) {
            client.setInstanceName("signing-" + System.nanoTime());
        }
    }

    static void patient(DefaultMQProducer producer) {
        producer.setMqClientApiTimeout(PATIENCE_MS);
        producer.setSendMsgTimeout(PATIENCE_MS);
    }

    private static DefaultMQPullConsumer puller(JSONObject command) throws Exception {
        String key = Login.key(command) + " " + command.getString("group");
        DefaultMQPullConsumer puller = PULLERS.get(key);
        if (puller == null) {
            puller = new DefaultMQPullConsumer(command.getString("group"), Login.hook(command));
            puller.setNamesrvAddr(command.getString("namesrv"));
            puller.setMqClientApiTimeout(PATIENCE_MS);
            puller.setConsumerPullTimeoutMillis(PATIENCE_MS);
            separate(puller, command);
            puller.start();
            PULLERS.put(key, puller);
        }
        return puller;
    }

    private static List<Message> messages(JSONArray described) {
        List<Message> messages = new ArrayList<>(described.size());
        for (int i = 0; i < described.size(); i++) {
            JSONObject one = described.getJSONObject(i);
            Message message = new Message(one.getString("topic"), Base64.getDecoder().decode(one.getString("body")));
            if (one.getString("tag") != null) {
                message.setTags(one.getString("tag"));
            }
            if (one.getJSONArray("keys") != null) {
                message.setKeys(one.getJSONArray("keys").toJavaList(String.class));
            }
            if (one.getJSONObject("properties") != null) {
                one.getJSONObject("properties").forEach((name, value) -> message.putUserProperty(name, (String) value));
            }
            message.setFlag(one.getIntValue("flag"));
            if (one.containsKey("delay_level")) {
                message.setDelayTimeLevel(one.getIntValue("delay_level"));
            }
            if (one.containsKey("deliver_at_ms")) {
                message.setDeliverTimeMs(one.getLongValue("deliver_at_ms"));
            }
            if (one.containsKey("wait_store_ok")) {
                message.setWaitStoreMsgOK(one.getBooleanValue("wait_store_ok"));
            }
            messages.add(message);
        }
        return messages;
    }

    private static List<JSONObject> send(JSONObject command) throws Exception {
        List<JSONObject> results = new ArrayList<>();
        JSONObject queue = command.getJSONObject("queue");
        for (Message message : messages(command.getJSONArray("messages"))) {
            results.add(describe(queue == null ? producer(command).send(message) : producer(command).send(message, queue(queue))));
        }
        return results;
    }

    /**
     * Sends one by one, each to the queue that SelectMessageQueueByHash chooses for its sharding key.
     */
    private static List<JSONObject> sendByKey(JSONObject command) throws Exception {
        List<JSONObject> results = new ArrayList<>();
        for (Message message : messages(command.getJSONArray("messages"))) {
            String key = message.getProperty(MessageConst.PROPERTY_SHARDING_KEY);
            results.add(describe(producer(command).send(message, new SelectMessageQueueByHash(), key)));
        }
        return results;
    }

    /**
     * Sends one by one with enableTrace. The producer stays: traces are written some seconds later, and shutdown may lose them.
     */
    private static List<JSONObject> sendTraced(JSONObject command) throws Exception {
        String key = "traced " + Login.key(command);
        DefaultMQProducer producer = PRODUCERS.get(key);
        if (producer == null) {
            producer = new DefaultMQProducer("interop_java_traced", Login.hook(command), true, null);
            producer.setNamesrvAddr(command.getString("namesrv"));
            producer.setInstanceName("traced-" + System.nanoTime());
            patient(producer);
            producer.start();
            PRODUCERS.put(key, producer);
        }
        List<JSONObject> results = new ArrayList<>();
        for (Message message : messages(command.getJSONArray("messages"))) {
            results.add(describe(producer.send(message)));
        }
        return results;
    }

    /**
     * Sends all messages at once through the client's own accumulator, which makes batches of them, and waits for each one's result: with
     * callbacks, or from a thread for each message, which are two ways through the accumulator.
     */
    private static List<JSONObject> sendAutoBatch(JSONObject command) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("interop_java_auto_batch", Login.hook(command));
        producer.setNamesrvAddr(command.getString("namesrv"));
        separate(producer, command);
        producer.batchMaxBytes(command.getLongValue("max_bytes"));
        producer.batchMaxDelayMs(command.getIntValue("max_delay_ms"));
        patient(producer);
        producer.start();
        producer.setAutoBatch(true);
        List<Message> messages = messages(command.getJSONArray("messages"));
        boolean blocking = command.getBooleanValue("blocking");
        ExecutorService senders = blocking ? Executors.newFixedThreadPool(messages.size()) : null;
        try {
            List<Future<SendResult>> sent = new ArrayList<>();
            for (Message message : messages) {
                sent.add(blocking ? senders.submit(() -> producer.send(message)) : sendWithCallback(producer, message));
            }
            List<JSONObject> results = new ArrayList<>();
            for (Future<SendResult> one : sent) {
                results.add(describe(one.get(PATIENCE_MS, TimeUnit.MILLISECONDS)));
            }
            return results;
        } finally {
            if (blocking) {
                senders.shutdownNow();
            }
            producer.shutdown();
        }
    }

    private static Future<SendResult> sendWithCallback(DefaultMQProducer producer, Message message) throws Exception {
        CompletableFuture<SendResult> future = new CompletableFuture<>();
        producer.send(message, new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                future.complete(result);
            }

            @Override
            public void onException(Throwable failure) {
                future.completeExceptionally(failure);
            }
        });
        return future;
    }

    private static List<JSONObject> query(JSONObject command) throws Exception {
        QueryResult result = producer(command).queryMessage(command.getString("topic"), command.getString("key"),
            command.getIntValue("max_messages"), 0, Long.MAX_VALUE);
        List<JSONObject> found = new ArrayList<>();
        result.getMessageList().forEach(message -> found.add(describe(message)));
        return found;
    }

    private static MessageQueue queue(JSONObject described) {
        return new MessageQueue(described.getString("topic"), described.getString("broker"), described.getIntValue("queue_id"));
    }

    private static JSONObject describe(SendResult result) {
        JSONObject described = new JSONObject();
        described.put("status", result.getSendStatus().name());
        described.put("msg_id", result.getMsgId());
        described.put("offset_msg_id", result.getOffsetMsgId());
        described.put("broker", result.getMessageQueue().getBrokerName());
        described.put("queue_id", result.getMessageQueue().getQueueId());
        described.put("queue_offset", result.getQueueOffset());
        described.put("region_id", result.getRegionId());
        described.put("trace_on", result.isTraceOn());
        return described;
    }

    private static String host(SocketAddress address) {
        InetSocketAddress inet = (InetSocketAddress) address;
        return inet.getAddress().getHostAddress() + ":" + inet.getPort();
    }

    static JSONObject describe(MessageExt message) {
        JSONObject described = new JSONObject();
        described.put("topic", message.getTopic());
        described.put("body", Base64.getEncoder().encodeToString(message.getBody()));
        described.put("tag", message.getTags());
        described.put("keys", message.getKeys());
        described.put("properties", new HashMap<>(message.getProperties()));
        described.put("broker", message.getBrokerName());
        described.put("queue_id", message.getQueueId());
        described.put("queue_offset", message.getQueueOffset());
        described.put("msg_id", message.getMsgId());
        described.put("unique_key", MessageClientIDSetter.getUniqID(message));
        described.put("offset_msg_id", message instanceof MessageClientExt client ? client.getOffsetMsgId() : null);
        described.put("flag", message.getFlag());
        described.put("sys_flag", message.getSysFlag());
        described.put("born_timestamp_ms", message.getBornTimestamp());
        described.put("store_timestamp_ms", message.getStoreTimestamp());
        described.put("born_host", host(message.getBornHost()));
        described.put("store_host", host(message.getStoreHost()));
        described.put("reconsume_times", message.getReconsumeTimes());
        described.put("store_size", message.getStoreSize());
        described.put("commitlog_offset", message.getCommitLogOffset());
        described.put("body_crc", message.getBodyCRC());
        return described;
    }

    private static List<JSONObject> queues(JSONObject command) throws Exception {
        List<JSONObject> described = new ArrayList<>();
        for (MessageQueue queue : puller(command).fetchSubscribeMessageQueues(command.getString("topic"))) {
            described.add(describe(queue));
        }
        return described;
    }

    static JSONObject describe(MessageQueue queue) {
        JSONObject described = new JSONObject();
        described.put("topic", queue.getTopic());
        described.put("broker", queue.getBrokerName());
        described.put("queue_id", queue.getQueueId());
        return described;
    }

    private static JSONObject pull(JSONObject command) throws Exception {
        String expression = command.getString("expression");
        PullResult result = puller(command).pull(queue(command.getJSONObject("queue")), expression == null ? "*" : expression,
            command.getLongValue("offset"), command.getIntValue("max_messages"));
        JSONObject described = new JSONObject();
        described.put("status", result.getPullStatus().name());
        described.put("next_offset", result.getNextBeginOffset());
        described.put("min_offset", result.getMinOffset());
        described.put("max_offset", result.getMaxOffset());
        List<JSONObject> found = new ArrayList<>();
        if (result.getMsgFoundList() != null) {
            result.getMsgFoundList().forEach(message -> found.add(describe(message)));
        }
        described.put("messages", found);
        return described;
    }

    private static JSONObject offsets(JSONObject command) throws Exception {
        DefaultMQPullConsumer puller = puller(command);
        MessageQueue queue = queue(command.getJSONObject("queue"));
        JSONObject described = new JSONObject();
        described.put("min", puller.minOffset(queue));
        described.put("max", puller.maxOffset(queue));
        described.put("committed", puller.fetchConsumeOffset(queue, true));
        if (command.containsKey("timestamp_ms")) {
            described.put("at", puller.searchOffset(queue, command.getLongValue("timestamp_ms")));
        }
        return described;
    }

    /** Wakes the client's thread of events while its owner waits for it to end: it looks every 3 s only. */
    private static Thread hurry(Thread owner) {
        Thread hurrying = new Thread(() -> {
            try {
                while (true) {
                    Thread.sleep(20);
                    for (StackTraceElement frame : owner.getStackTrace()) {
                        if (frame.getMethodName().equals("shutdown") && frame.getClassName().endsWith(".ServiceThread")) {
                            Thread.getAllStackTraces().keySet().stream()
                                .filter(thread -> thread.getName().startsWith("NettyEventExecutor")).forEach(Thread::interrupt);
                        }
                    }
                }
            } catch (InterruptedException ended) {
                // The command has ended.
            }
        });
        hurrying.setDaemon(true);
        hurrying.start();
        return hurrying;
    }

    /** Sends a message for a time some seconds ahead, and returns its recall handle. */
    private static String sendTimed(DefaultMQProducer producer, JSONObject command) throws Exception {
        Message message = new Message(command.getString("topic"), Base64.getDecoder().decode(command.getString("body")));
        message.setDelayTimeSec(command.getLongValue("delay_s"));
        return producer.send(message).getRecallHandle();
    }

    /** The admin tool adds its commands to a static list with each call and takes the first of a name; some keep the client they made for it, which has ended. */
    private static final class FreshCommands extends MQAdminStartup {
        static void forget() {
            SUB_COMMANDS.clear();
        }
    }

    /** Runs one command of the admin tool as its main method does, and returns what it printed to either stream. */
    private static String admin(String[] arguments) {
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PrintStream out = System.out;
        PrintStream err = System.err;
        PrintStream capture = new PrintStream(printed, true, StandardCharsets.UTF_8);
        System.setOut(capture);
        System.setErr(capture);
        Thread hurrying = hurry(Thread.currentThread());
        try {
            FreshCommands.forget();
            MQAdminStartup.main0(arguments, null);
        } finally {
            hurrying.interrupt();
            System.setOut(out);
            System.setErr(err);
        }
        return printed.toString(StandardCharsets.UTF_8);
    }
}
