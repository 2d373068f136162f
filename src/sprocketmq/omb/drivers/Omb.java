import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicLongArray;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import java.util.zip.Deflater;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A worker of `sprocketmq bench omb` with Apache RocketMQ's Java client: it reads a WorkerPlan and then WorkerCommands from standard
 * input and prints WorkerReports, one JSON document a line (sprocketmq/omb/plan.py). apache.py runs it from source.
 */
public final class Omb {
    private static final int STAMP_BYTES = 8;
    private static final long FLUSH_TIMEOUT_S = 30;

    private final JSONObject plan;
    private final JSONObject config;
    private final PrintStream out;
    private final List<byte[]> payloads = new ArrayList<>();
    private final String[] topics;
    private final String[] keys;
    private final String[] tags;
    private final List<DefaultMQPushConsumer> consumers = new ArrayList<>();
    private DefaultMQProducer producer;

    private final Semaphore free;
    private final int inFlight;
    private final AtomicLong number = new AtomicLong();
    private volatile Schedule schedule;
    private volatile boolean stopped;

    private final Recorder publish = new Recorder();
    private final Recorder publishDelay = new Recorder();
    private final Recorder endToEnd = new Recorder();
    private final AtomicLong sent = new AtomicLong();
    private final AtomicLong sentBytes = new AtomicLong();
    private final AtomicLong sendErrors = new AtomicLong();
    private final AtomicLong received = new AtomicLong();
    private final AtomicLong receivedBytes = new AtomicLong();
    private final AtomicReference<String> firstError = new AtomicReference<>();
    private String phase = "setup";
    private long reportedAt = System.nanoTime();
    private long reportedCpu = cpuNanos();

    private Omb(JSONObject plan, PrintStream out) {
        this.plan = plan;
        this.out = out;
        config = plan.getJSONObject("config");
        topics = strings("producers");
        keys = strings("keys");
        tags = strings("tags");
        for (Object payload : plan.getJSONArray("payloads")) {
            payloads.add(Base64.getDecoder().decode((String) payload));
        }
        inFlight = config.getIntValue("maxInFlight");
        free = new Semaphore(inFlight);
    }

    /** When messages are due: `begin` is the time of message 0; `interval` is 0 for as many as the client accepts. */
    private static final class Schedule {
        final long begin = System.nanoTime();
        final AtomicLong next = new AtomicLong();
        final double interval;

        Schedule(double rate) {
            interval = rate > 0 ? 1e9 / rate : 0;
        }
    }

    public static void main(String[] arguments) throws Exception {
        // The client's logger prints to standard output, which is for reports.
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Omb worker = new Omb(JSON.parseObject(in.readLine()), out);
        try {
            worker.run(in);
        } catch (Exception failure) {
            failure.printStackTrace();
            worker.report(report -> report.put("failure", String.valueOf(failure)));
            System.exit(1);
        }
        System.exit(0);
    }

    private void run(BufferedReader in) throws Exception {
        startClients();
        Thread reporter = new Thread(this::reportRegularly, "reports");
        reporter.setDaemon(true);
        report(report -> report.put("ready", true));
        reporter.start();
        List<Thread> senders = new ArrayList<>();
        for (int i = 0; topics.length > 0 && i < config.getIntValue("senderThreads"); i++) {
            senders.add(new Thread(this::sendOnSchedule, "sender-" + i));
            senders.get(i).start();
        }
        String line;
        while ((line = in.readLine()) != null) {
            JSONObject command = JSON.parseObject(line);
            String action = command.getString("action");
            report(report -> { });
            synchronized (this) {
                String next = command.getString("phase");
                phase = next == null || next.isEmpty() ? phase : next;
            }
            if (action.equals("stop")) {
                break;
            }
            act(action);
        }
        stopped = true;
        schedule = null;
        for (Thread sender : senders) {
            LockSupport.unpark(sender);
            sender.join();
        }
        if (!free.tryAcquire(inFlight, FLUSH_TIMEOUT_S, TimeUnit.SECONDS)) {
            failed(new IllegalStateException("sends were not answered within " + FLUSH_TIMEOUT_S + " s"));
        }
        for (DefaultMQPushConsumer consumer : consumers) {
            consumer.shutdown();
        }
        if (producer != null) {
            producer.shutdown();
        }
        report(report -> report.put("ended", true));
    }

    private void act(String action) {
        switch (action) {
            case "probe":
                for (int i = 0; i < topics.length; i++) {
                    send(i, System.nanoTime());
                }
                break;
            case "load":
                schedule = new Schedule(plan.getDoubleValue("rate"));
                break;
            case "hold":
                schedule = null;
                break;
            case "pause":
                consumers.forEach(DefaultMQPushConsumer::suspend);
                break;
            case "resume":
                consumers.forEach(DefaultMQPushConsumer::resume);
                break;
            case "mark":
                break;
            default:
                throw new IllegalArgumentException("no such action: " + action);
        }
    }

    private void startClients() throws Exception {
        String namesrv = config.getString("namesrv");
        String unique = ProcessHandle.current().pid() + "-" + System.nanoTime();
        if (topics.length > 0) {
            producer = new DefaultMQProducer("omb-producer-" + unique);
            producer.setNamesrvAddr(namesrv);
            producer.setInstanceName("producer-" + unique);
            producer.setMaxMessageSize(config.getIntValue("maxMessageSize"));
            producer.setCompressMsgBodyOverHowmuch(config.getIntValue("compressOverBytes"));
            boolean autoBatch = config.getBooleanValue("autoBatch");
            if (autoBatch) {
                producer.batchMaxBytes(config.getLongValue("batchMaxBytes"));
                producer.batchMaxDelayMs(config.getIntValue("batchMaxDelayMs"));
            }
            producer.start();
            producer.setAutoBatch(autoBatch);
        }
        // Members of one group that read the same topic are clients of their own; all others share connections.
        Map<String, Integer> members = new HashMap<>();
        for (Object each : plan.getJSONArray("consumers")) {
            JSONObject subscription = (JSONObject) each;
            String group = subscription.getString("name");
            int member = members.merge(group, 1, Integer::sum);
            DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
            consumer.setNamesrvAddr(namesrv);
            consumer.setInstanceName("consumer-" + member + "-" + unique);
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.setConsumeMessageBatchMaxSize(config.getIntValue("consumerBatchMax"));
            consumer.setPullBatchSize(config.getIntValue("consumerBatchMax"));
            consumer.setConsumeThreadMin(config.getIntValue("consumeThreads"));
            consumer.setConsumeThreadMax(config.getIntValue("consumeThreads"));
            consumer.setPullThresholdForQueue(config.getIntValue("maxCached"));
            consumer.subscribe(subscription.getString("topic"), "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                received(messages);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            consumers.add(consumer);
        }
    }

    private void sendOnSchedule() {
        while (!stopped) {
            Schedule now = schedule;
            if (now == null) {
                LockSupport.parkNanos(1_000_000);
                continue;
            }
            long due;
            if (now.interval > 0) {
                due = now.begin + (long) (now.next.getAndIncrement() * now.interval);
                long left;
                while ((left = due - System.nanoTime()) > 0 && schedule == now) {
                    LockSupport.parkNanos(Math.min(left, 100_000_000));
                }
                if (schedule != now) {
                    continue;
                }
            } else {
                due = 0;
            }
            send(number.getAndIncrement(), due);
        }
    }

    /** Sends one message; `due` is 0 for a message that is due when there is room for it. */
    private void send(long i, long due) {
        free.acquireUninterruptibly();
        byte[] payload = payloads.get((int) (i % payloads.size()));
        byte[] body = payload.clone();
        ByteBuffer.wrap(body).putLong(nowMicros());
        Message message = new Message(topics[(int) (i % topics.length)], body);
        if (keys.length > 0) {
            message.setKeys(keys[(int) (i % keys.length)]);
        }
        if (tags.length > 0) {
            message.setTags(tags[(int) (i % tags.length)]);
        }
        long began = System.nanoTime();
        long intended = due == 0 ? began : due;
        publishDelay.record((began - intended) / 1000);
        try {
            producer.send(message, new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    publish.record((System.nanoTime() - intended) / 1000);
                    sent.incrementAndGet();
                    sentBytes.addAndGet(body.length);
                    free.release();
                }

                @Override
                public void onException(Throwable failure) {
                    failed(failure);
                    free.release();
                }
            });
        } catch (Exception failure) {
            failed(failure);
            free.release();
        }
    }

    private void received(List<MessageExt> messages) {
        long now = nowMicros();
        long bytes = 0;
        for (MessageExt message : messages) {
            byte[] body = message.getBody();
            bytes += body.length;
            if (body.length >= STAMP_BYTES) {
                endToEnd.record(now - ByteBuffer.wrap(body).getLong());
            }
        }
        received.addAndGet(messages.size());
        receivedBytes.addAndGet(bytes);
    }

    private void failed(Throwable failure) {
        sendErrors.incrementAndGet();
        firstError.compareAndSet(null, String.valueOf(failure));
    }

    private void reportRegularly() {
        long interval = (long) (plan.getDoubleValue("report_s") * 1e9);
        long next = System.nanoTime() + interval;
        while (!stopped) {
            long left = next - System.nanoTime();
            if (left > 0) {
                LockSupport.parkNanos(left);
                continue;
            }
            next += interval;
            report(report -> { });
        }
    }

    private synchronized void report(java.util.function.Consumer<JSONObject> more) {
        long now = System.nanoTime();
        long cpu = cpuNanos();
        JSONObject report = new JSONObject();
        report.put("worker", plan.getString("worker"));
        report.put("phase", phase);
        report.put("elapsed_s", (now - reportedAt) / 1e9);
        report.put("cpu_s", (cpu - reportedCpu) / 1e9);
        report.put("sent", sent.getAndSet(0));
        report.put("sent_bytes", sentBytes.getAndSet(0));
        report.put("send_errors", sendErrors.getAndSet(0));
        String error = firstError.getAndSet(null);
        report.put("first_error", error == null ? "" : error);
        report.put("received", received.getAndSet(0));
        report.put("received_bytes", receivedBytes.getAndSet(0));
        report.put("publish", publish.take());
        report.put("publish_delay", publishDelay.take());
        report.put("end_to_end", endToEnd.take());
        more.accept(report);
        reportedAt = now;
        reportedCpu = cpu;
        out.println(report);
    }

    private String[] strings(String name) {
        JSONArray values = plan.getJSONArray(name);
        return values == null ? new String[0] : values.toArray(String.class);
    }

    private static long nowMicros() {
        Instant now = Instant.now();
        return now.getEpochSecond() * 1_000_000 + now.getNano() / 1000;
    }

    private static long cpuNanos() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }
}

/**
 * A histogram of microseconds that several threads record into, in the layout of HdrHistogram with lowest 1, highest one hour and three
 * significant digits: 2,048 counts of 1 us each, then halves of 1,024 counts whose width doubles.
 */
final class Recorder {
    private static final long HIGHEST = 3_600_000_000L;
    private static final int DIGITS = 3;
    private static final int SUB_BUCKETS = 2048;
    private static final int HALF = SUB_BUCKETS / 2;
    private static final int HALF_BITS = 10;
    private static final int BUCKETS = 22;
    private static final int V2 = 0x1c849303 | 0x10;
    private static final int V2_COMPRESSED = 0x1c849304 | 0x10;

    private final AtomicLongArray counts = new AtomicLongArray((BUCKETS + 1) * HALF);

    void record(long micros) {
        counts.incrementAndGet(index(Math.min(Math.max(micros, 0), HIGHEST)));
    }

    private static int index(long value) {
        int bucket = 64 - HALF_BITS - 1 - Long.numberOfLeadingZeros(value | (SUB_BUCKETS - 1));
        int within = (int) (value >>> bucket);
        return ((bucket + 1) << HALF_BITS) + within - HALF;
    }

    /** Returns what was recorded since the last call in the V2 compressed encoding as Base64, or "" for nothing. */
    String take() {
        ByteArrayOutputStream encoded = new ByteArrayOutputStream();
        long zeros = 0;
        boolean any = false;
        for (int i = 0; i < counts.length(); i++) {
            long count = counts.get(i) == 0 ? 0 : counts.getAndSet(i, 0);
            if (count == 0) {
                zeros++;
                continue;
            }
            any = true;
            if (zeros > 0) {
                putZigZag(encoded, zeros == 1 ? 0 : -zeros);
                zeros = 0;
            }
            putZigZag(encoded, count);
        }
        if (!any) {
            return "";
        }
        // Cookie, length of the counts, normalizing offset, digits, lowest, highest, ratio; all big-endian.
        ByteBuffer plain = ByteBuffer.allocate(40 + encoded.size());
        plain.putInt(V2).putInt(encoded.size()).putInt(0).putInt(DIGITS).putLong(1).putLong(HIGHEST).putDouble(1.0);
        plain.put(encoded.toByteArray());
        Deflater deflater = new Deflater();
        deflater.setInput(plain.array());
        deflater.finish();
        byte[] packed = new byte[plain.capacity() + 64];
        int length = deflater.deflate(packed);
        deflater.end();
        ByteBuffer framed = ByteBuffer.allocate(8 + length).putInt(V2_COMPRESSED).putInt(length).put(packed, 0, length);
        return Base64.getEncoder().encodeToString(framed.array());
    }

    /** LEB128 of the ZigZag form; counts stay below 2^55, where HdrHistogram's nine-byte form is the same. */
    private static void putZigZag(ByteArrayOutputStream to, long value) {
        long left = (value << 1) ^ (value >> 63);
        while ((left & ~0x7FL) != 0) {
            to.write((int) (left & 0x7F | 0x80));
            left >>>= 7;
        }
        to.write((int) left);
    }
}
