import com.alibaba.fastjson2.JSONObject;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** The workloads of the load benchmarks on Apache's Java client; benchmarks/load/client.py runs the same ones on ours. */
final class Load {
    /** Of submitted messages every so many has its latency measured. */
    private static final int SAMPLE_EVERY = 64;

    private static final Map<String, DefaultMQProducer> PRODUCERS = new HashMap<>();

    private static final Map<String, Delivery> DELIVERIES = new HashMap<>();

    /** Bodies of mixed messages: one of so many is sent after the other. */
    private static final int MIXED_BODIES = 1021;
    private static final int MIXED_LEAST = 512;
    private static final int MIXED_MOST = 1536;
    private static final String[] TAGS = {"created", "paid", "shipped", "cancelled"};

    private static int groups = 0;

    private interface Send {
        /** Sends, waits for the answer and returns how many messages were sent. */
        int once() throws Exception;
    }

    /** Makes the messages of a command: bodies of one length, or with `mixed` of 512 to 1,536 bytes with a tag and a key. */
    private static final class Messages {
        private final String topic;
        private final boolean mixed;
        private final byte[][] bodies;
        private final AtomicLong number = new AtomicLong();

        Messages(JSONObject command) {
            topic = command.getString("topic");
            mixed = command.getBooleanValue("mixed");
            bodies = new byte[mixed ? MIXED_BODIES : 1][];
            Random random = new Random(7);
            for (int i = 0; i < bodies.length; i++) {
                bodies[i] = new byte[mixed ? random.nextInt(MIXED_LEAST, MIXED_MOST + 1) : command.getIntValue("body_bytes")];
                random.nextBytes(bodies[i]);
            }
        }

        Message next() {
            if (!mixed) {
                return new Message(topic, bodies[0]);
            }
            long n = number.getAndIncrement();
            return new Message(topic, TAGS[(int) (n % TAGS.length)], "order-" + n, bodies[(int) (n % MIXED_BODIES)]);
        }
    }

    private Load() {
    }

    static JSONObject run(JSONObject command) throws Exception {
        switch (command.getString("op")) {
            case "load_single":
                return single(command);
            case "load_batch":
                return batch(command);
            case "load_submit":
                return submit(command);
            case "load_open":
                return open(command);
            case "load_delivery":
                return delivery(command);
            case "load_consume":
                return consume(command);
            default:
                throw new IllegalArgumentException("no such op: " + command.getString("op"));
        }
    }

    static void shutdown() {
        PRODUCERS.values().forEach(DefaultMQProducer::shutdown);
        DELIVERIES.values().forEach(delivery -> delivery.consumer.shutdown());
    }

    private static DefaultMQProducer producer(JSONObject command) throws Exception {
        boolean autoBatch = command.getBooleanValue("auto_batch");
        String key = autoBatch + " " + command.getString("namesrv");
        DefaultMQProducer producer = PRODUCERS.get(key);
        if (producer == null) {
            producer = new DefaultMQProducer(autoBatch ? "load_auto_batch" : "load_producer");
            producer.setNamesrvAddr(command.getString("namesrv"));
            producer.start();
            producer.setAutoBatch(autoBatch);
            PRODUCERS.put(key, producer);
        }
        return producer;
    }

    private static byte[] body(JSONObject command) {
        byte[] body = new byte[command.getIntValue("body_bytes")];
        Arrays.fill(body, (byte) 'x');
        return body;
    }

    /** Synchronous sends, one after the other in each of the threads. */
    private static JSONObject single(JSONObject command) throws Exception {
        DefaultMQProducer producer = producer(command);
        Messages messages = new Messages(command);
        return closedLoop(command, () -> {
            producer.send(messages.next());
            return 1;
        });
    }

    /** Explicit batches, one after the other in each of the threads; their messages are made anew. */
    private static JSONObject batch(JSONObject command) throws Exception {
        DefaultMQProducer producer = producer(command);
        String topic = command.getString("topic");
        int size = command.getIntValue("batch");
        byte[] body = body(command);
        return closedLoop(command, () -> {
            List<Message> batch = new ArrayList<>(size);
            for (int i = 0; i < size; i++) {
                batch.add(new Message(topic, body));
            }
            producer.send(batch);
            return size;
        });
    }

    /** Sends from every thread until the window closes; counts what completed inside it, after the warm-up. */
    private static JSONObject closedLoop(JSONObject command, Send send) throws Exception {
        Window window = new Window(command);
        AtomicLong messages = new AtomicLong();
        onThreads(command.getIntValue("senders"), thread -> {
            Latencies taken = window.latencies();
            long sent = 0;
            long before = System.nanoTime();
            while (before < window.end) {
                try {
                    int count = send.once();
                    long after = System.nanoTime();
                    if (after >= window.begin && after < window.end) {
                        sent += count;
                        taken.add(after - before);
                    }
                    before = after;
                } catch (Exception failure) {
                    window.failed(failure);
                    before = System.nanoTime();
                }
            }
            messages.addAndGet(sent);
        });
        return window.describe(messages.get());
    }

    /** Asynchronous sends with a callback, at most in_flight of them unanswered. */
    private static JSONObject submit(JSONObject command) throws Exception {
        DefaultMQProducer producer = producer(command);
        String topic = command.getString("topic");
        byte[] body = body(command);
        Window window = new Window(command);
        AtomicLong messages = new AtomicLong();
        Latencies sampled = window.latencies();
        int inFlight = command.getIntValue("in_flight");
        Semaphore free = new Semaphore(inFlight);

        class Callback implements SendCallback {
            private final long before;

            Callback(long before) {
                this.before = before;
            }

            @Override
            public void onSuccess(SendResult result) {
                long now = System.nanoTime();
                if (now >= window.begin && now < window.end) {
                    messages.incrementAndGet();
                    if (before != 0) {
                        synchronized (sampled) {
                            sampled.add(now - before);
                        }
                    }
                }
                free.release();
            }

            @Override
            public void onException(Throwable failure) {
                window.failed(failure);
                free.release();
            }
        }

        Callback unsampled = new Callback(0);
        onThreads(command.getIntValue("senders"), thread -> {
            long before = System.nanoTime();
            for (int number = 0; before < window.end; number++) {
                boolean sample = number % SAMPLE_EVERY == 0;
                if (sample) {
                    before = System.nanoTime();
                }
                free.acquireUninterruptibly();
                try {
                    producer.send(new Message(topic, body), sample ? new Callback(before) : unsampled);
                } catch (Exception failure) {
                    window.failed(failure);
                    free.release();
                }
            }
        });
        if (!free.tryAcquire(inFlight, 30, TimeUnit.SECONDS)) {
            window.failed(new IllegalStateException("sends are still not answered after 30 s"));
        }
        return window.describe(messages.get());
    }

    /**
     * Synchronous sends at a fixed rate: message i is due at i / rate whatever became of those before, and its latency counts from then on,
     * so that a send that has to wait for a slow one counts as slow as well (no coordinated omission).
     */
    private static JSONObject open(JSONObject command) throws Exception {
        DefaultMQProducer producer = producer(command);
        Messages messages = new Messages(command);
        Window window = new Window(command);
        AtomicLong answered = new AtomicLong();
        onThreads(command.getIntValue("senders"), onTime(command, window, (due, taken) -> {
            try {
                producer.send(messages.next());
            } catch (Exception failure) {
                window.failed(failure);
            }
            if (due >= window.begin) {
                taken.add(System.nanoTime() - due);
                answered.incrementAndGet();
            }
        }));
        return window.describe(answered.get());
    }

    private interface DueSend {
        void send(long due, Latencies taken) throws Exception;
    }

    /** Returns the work of threads that share a timetable: each takes the next send, waits until it is due, and does it. */
    private static Work onTime(JSONObject command, Window window, DueSend due) {
        double intervalNs = 1e9 / command.getDoubleValue("rate");
        long started = System.nanoTime();
        AtomicLong next = new AtomicLong();
        return thread -> {
            Latencies taken = window.latencies();
            while (true) {
                long time = started + (long) (next.getAndIncrement() * intervalNs);
                if (time >= window.end) {
                    return;
                }
                for (long wait = time - System.nanoTime(); wait > 0; wait = time - System.nanoTime()) {
                    LockSupport.parkNanos(wait);
                }
                due.send(time, taken);
            }
        };
    }

    /** A push consumer that stays from round to round; it takes the time that passed since a message was due. */
    private static final class Delivery {
        final DefaultMQPushConsumer consumer;
        private volatile Window window;
        private volatile Latencies taken;
        private int inWindow;

        Delivery(JSONObject command) throws Exception {
            consumer = new DefaultMQPushConsumer("load_delivery_java_" + ++groups);
            consumer.setNamesrvAddr(command.getString("namesrv"));
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET);
            consumer.subscribe(command.getString("topic"), "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
                long now = System.nanoTime();
                for (MessageExt message : batch) {
                    note(ByteBuffer.wrap(message.getBody()).getLong(), now);
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            // As in consume: the heartbeat that tells the broker of the subscription may have been swallowed.
            Thread.sleep(1500);
            consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().sendHeartbeatToAllBrokerWithLock();
        }

        synchronized void begin(Window begun) {
            window = begun;
            taken = begun.latencies();
            inWindow = 0;
        }

        private synchronized void note(long due, long now) {
            if (window != null && due >= window.begin && due < window.end) {
                taken.add(now - due);
                inWindow++;
            }
        }

        synchronized int received() {
            return inWindow;
        }
    }

    /**
     * Synchronous sends at a fixed rate, and the time from when each was due until the listener of a push consumer got it. What has not come
     * 10 s after the last send counts as failed.
     */
    private static JSONObject delivery(JSONObject command) throws Exception {
        DefaultMQProducer producer = producer(command);
        Messages messages = new Messages(command);
        String key = command.getString("namesrv") + " " + command.getString("topic");
        Delivery delivery = DELIVERIES.get(key);
        if (delivery == null) {
            delivery = new Delivery(command);
            DELIVERIES.put(key, delivery);
        }
        Window window = new Window(command);
        delivery.begin(window);
        AtomicLong sent = new AtomicLong();
        onThreads(command.getIntValue("senders"), onTime(command, window, (due, taken) -> {
            Message message = messages.next();
            byte[] body = message.getBody().clone();
            ByteBuffer.wrap(body).putLong(due);
            message.setBody(body);
            try {
                producer.send(message);
                if (due >= window.begin) {
                    sent.incrementAndGet();
                }
            } catch (Exception failure) {
                window.failed(failure);
            }
        }));
        long patience = System.nanoTime() + TimeUnit.SECONDS.toNanos(10);
        while (delivery.received() < sent.get() && System.nanoTime() < patience) {
            Thread.sleep(5);
        }
        if (delivery.received() < sent.get()) {
            window.failed(new IllegalStateException(delivery.received() + " of " + sent + " messages were received"));
        }
        synchronized (delivery) {
            return window.describe(delivery.received());
        }
    }

    /** Consumes so many messages from the first offset with a new push consumer, touching each body; counts from the first message on. */
    private static JSONObject consume(JSONObject command) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("load_consumer_" + ++groups);
        consumer.setNamesrvAddr(command.getString("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(command.getIntValue("batch_max"));
        consumer.setPullBatchSize(command.getIntValue("batch_max"));
        consumer.setPullBatchSizeInBytes(command.getIntValue("pull_bytes"));
        consumer.setPullThresholdForQueue(command.getIntValue("max_cached"));
        consumer.setConsumeConcurrentlyMaxSpan(command.getIntValue("max_cached"));
        consumer.subscribe(command.getString("topic"), "*");
        long count = command.getLongValue("count");
        AtomicLong messages = new AtomicLong();
        AtomicLong bytes = new AtomicLong();
        AtomicLong first = new AtomicLong();
        AtomicLong last = new AtomicLong();
        CountDownLatch finished = new CountDownLatch(1);
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            first.compareAndSet(0, System.nanoTime());
            long size = 0;
            for (MessageExt message : batch) {
                size += message.getBody().length;
            }
            bytes.addAndGet(size);
            long before = messages.getAndAdd(batch.size());
            if (before < count && before + batch.size() >= count) {
                last.set(System.nanoTime());
                finished.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        long started = System.nanoTime();
        consumer.start();
        // The client's first rebalance may swallow the heartbeat that tells the broker of its subscription (see Consumers): send another.
        finished.await(1500, TimeUnit.MILLISECONDS);
        consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().sendHeartbeatToAllBrokerWithLock();
        boolean all = finished.await((long) (command.getDoubleValue("timeout_s") * 1000), TimeUnit.MILLISECONDS);
        consumer.shutdown();
        JSONObject measured = new JSONObject();
        measured.put("messages", messages.get());
        measured.put("bytes", bytes.get());
        measured.put("elapsed_s", (last.get() - first.get()) / 1e9);
        measured.put("first_message_s", (first.get() - started) / 1e9);
        measured.put("errors", all ? 0 : 1);
        measured.put("first_error", all ? null : "only " + messages + " messages came");
        return measured;
    }

    private interface Work {
        void run(int thread) throws Exception;
    }

    private static void onThreads(int threads, Work work) throws Exception {
        AtomicReference<Throwable> broken = new AtomicReference<>();
        Thread[] running = new Thread[threads];
        for (int t = 0; t < threads; t++) {
            int thread = t;
            running[t] = new Thread(() -> {
                try {
                    work.run(thread);
                } catch (Throwable failure) {
                    broken.compareAndSet(null, failure);
                }
            }, "load-" + thread);
            running[t].start();
        }
        for (Thread thread : running) {
            thread.join();
        }
        if (broken.get() != null) {
            throw new IllegalStateException(broken.get());
        }
    }

    /** The time in which things count, and what failed at any time. */
    private static final class Window {
        final long begin;
        final long end;
        private final AtomicInteger errors = new AtomicInteger();
        private final AtomicReference<String> firstError = new AtomicReference<>();
        private final List<Latencies> latencies = new ArrayList<>();

        Window(JSONObject command) {
            begin = System.nanoTime() + (long) (command.getDoubleValue("warm_s") * 1e9);
            end = begin + (long) (command.getDoubleValue("measure_s") * 1e9);
        }

        void failed(Throwable failure) {
            errors.incrementAndGet();
            firstError.compareAndSet(null, failure.toString());
        }

        synchronized Latencies latencies() {
            latencies.add(new Latencies());
            return latencies.get(latencies.size() - 1);
        }

        JSONObject describe(long messages) {
            long[] all = latencies.stream().flatMapToLong(Latencies::stream).sorted().toArray();
            JSONObject measured = new JSONObject();
            measured.put("messages", messages);
            measured.put("elapsed_s", (end - begin) / 1e9);
            measured.put("calls", all.length);
            measured.put("p50_ms", quantile(all, 0.50));
            measured.put("p99_ms", quantile(all, 0.99));
            measured.put("p999_ms", quantile(all, 0.999));
            measured.put("errors", errors.get());
            measured.put("first_error", firstError.get());
            return measured;
        }

        private static double quantile(long[] sorted, double q) {
            return sorted.length == 0 ? 0.0 : sorted[(int) Math.min(sorted.length - 1, (long) (q * sorted.length))] / 1e6;
        }
    }

    /** Nanoseconds, one thread's. */
    private static final class Latencies {
        private long[] taken = new long[4096];
        private int count = 0;

        void add(long nanoseconds) {
            if (count == taken.length) {
                taken = Arrays.copyOf(taken, count * 2);
            }
            taken[count++] = nanoseconds;
        }

        java.util.stream.LongStream stream() {
            return Arrays.stream(taken, 0, count);
        }
    }
}
