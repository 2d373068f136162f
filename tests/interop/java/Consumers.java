import com.alibaba.fastjson2.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Executors;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.regex.Pattern;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.exception.RemotingSendRequestException;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;

/**
 * The push consumers that a test has started, each under a number: what they received, what they are given, and which messages their
 * listeners refuse.
 */
@SuppressWarnings("deprecation")
final class Consumers {
    /**
     * A second after its start the client's first rebalance and its first periodic heartbeat may collide; the heartbeat that would tell the
     * broker the new subscription version is then left out, and any broker refuses the consumer's pulls as not the latest until the next
     * one, 30 s later. Nor does the client look sooner for the retry topic that brokers make for a new group with its first heartbeat. Doing
     * both shortly after the start keeps tests from waiting for that.
     */
    private static final ScheduledExecutorService SOON_AFTER = Executors.newSingleThreadScheduledExecutor();

    private static final int STARTS = 3;

    private final Map<Integer, Running> running = new HashMap<>();
    private int lastHandle = 0;

    private record Running(DefaultMQPushConsumer consumer, BlockingQueue<JSONObject> received) {
    }

    /** Which messages a listener refuses: those whose body matches, as long as they came back fewer times than it says. */
    private record Refusal(Pattern body, int times, String how, int delayLevel, long pauseMs) {
        static Refusal of(JSONObject command) {
            String body = command.getString("refuse");
            return new Refusal(body == null ? null : Pattern.compile(body, Pattern.DOTALL),
                command.containsKey("refuse_times") ? command.getIntValue("refuse_times") : Integer.MAX_VALUE,
                command.containsKey("refuse_by") ? command.getString("refuse_by") : "later",
                command.getIntValue("delay_level"), command.getLongValue("pause_ms"));
        }

        /** Whether any of the batch is refused: returns so, or throws when that is how. */
        boolean refuses(List<MessageExt> batch) {
            boolean refused = body != null && batch.stream().anyMatch(message -> message.getReconsumeTimes() < times
                && body.matcher(new String(message.getBody(), StandardCharsets.UTF_8)).matches());
            if (refused && how.equals("exception")) {
                throw new IllegalStateException("refused by the test");
            }
            return refused;
        }

        void pause() {
            try {
                Thread.sleep(pauseMs);
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
        }
    }

    /**
     * Starts a consumer. Its start asks the nameserver for routes beside the client's other requests on the same connection; when one of those
     * times out, the client closes the connection under all of them, and the start fails, which on a busy machine happens. As an application
     * would, this then starts another consumer.
     */
    int start(JSONObject command) throws Exception {
        for (int tries = 1; ; tries++) {
            BlockingQueue<JSONObject> received = new LinkedBlockingQueue<>();
            DefaultMQPushConsumer consumer = configured(command, received);
            try {
                consumer.start();
            } catch (IllegalStateException e) {
                if (tries == STARTS || !(e.getCause() instanceof RemotingSendRequestException)) {
                    throw e;
                }
                consumer.shutdown();
                continue;
            }
            soonAfter(consumer.getDefaultMQPushConsumerImpl().getmQClientFactory());
            running.put(++lastHandle, new Running(consumer, received));
            return lastHandle;
        }
    }

    /** Makes a consumer as a command describes it, whose listener adds what it gets to `received`. */
    private static DefaultMQPushConsumer configured(JSONObject command, BlockingQueue<JSONObject> received) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
            command.getString("group"), Login.hook(command), new AllocateMessageQueueAveragely(), command.getBooleanValue("traced"), null);
        consumer.setNamesrvAddr(command.getString("namesrv"));
        if (command.getString("namespace") != null) {
            consumer.setNamespace(command.getString("namespace"));
        }
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setInstanceName("interop-" + System.nanoTime());
        // What a listener has answered is committed by shutdown only if it waits for the listener's thread.
        consumer.setAwaitTerminationMillisWhenShutdown(5000);
        if (command.getBooleanValue("broadcasting")) {
            consumer.setMessageModel(MessageModel.BROADCASTING);
        }
        if (command.containsKey("batch_max")) {
            consumer.setConsumeMessageBatchMaxSize(command.getIntValue("batch_max"));
        }
        if (command.containsKey("max_reconsume_times")) {
            consumer.setMaxReconsumeTimes(command.getIntValue("max_reconsume_times"));
        }
        if (command.getBooleanValue("one_thread")) {
            consumer.setConsumeThreadMin(1);
            consumer.setConsumeThreadMax(1);
        }
        if (command.containsKey("max_cached")) {
            consumer.setPullThresholdForQueue(command.getIntValue("max_cached"));
        }
        if (command.getBooleanValue("broker_rebalance")) {
            consumer.setClientRebalance(false);
        }
        if (command.containsKey("poll_routes_ms")) {
            consumer.setPollNameServerInterval(command.getIntValue("poll_routes_ms"));
        }
        String expression = command.getString("expression");
        if (command.getBooleanValue("sql")) {
            consumer.subscribe(command.getString("topic"), MessageSelector.bySql(expression));
        } else {
            consumer.subscribe(command.getString("topic"), expression == null ? "*" : expression);
        }
        Refusal refusal = Refusal.of(command);
        if (command.getBooleanValue("orderly")) {
            consumer.setSuspendCurrentQueueTimeMillis(100);
            consumer.registerMessageListener((MessageListenerOrderly) (batch, context) -> {
                note(batch, received);
                refusal.pause();
                return refusal.refuses(batch) ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT : ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
                note(batch, received);
                refusal.pause();
                if (!refusal.refuses(batch)) {
                    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                }
                context.setDelayLevelWhenNextConsume(refusal.delayLevel());
                return refusal.how().equals("null") ? null : ConsumeConcurrentlyStatus.RECONSUME_LATER;
            });
        }
        return consumer;
    }

    /** Has a consumer do shortly after its start what it would else do 30 s later. */
    static void soonAfter(MQClientInstance instance) {
        SOON_AFTER.schedule(() -> {
            instance.sendHeartbeatToAllBrokerWithLock();
            instance.updateTopicRouteInfoFromNameServer();
            instance.rebalanceImmediately();
        }, 1500, TimeUnit.MILLISECONDS);
    }

    /** Describes messages as the listener gets them: the client goes on changing them. */
    private static void note(List<MessageExt> batch, BlockingQueue<JSONObject> received) {
        long now = System.currentTimeMillis();
        for (MessageExt message : batch) {
            JSONObject described = Driver.describe(message);
            described.put("received_ms", now);
            received.add(described);
        }
    }

    List<JSONObject> take(JSONObject command) throws InterruptedException {
        BlockingQueue<JSONObject> received = running.get(command.getIntValue("handle")).received();
        int count = command.getIntValue("count");
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(command.getLongValue("timeout_ms"));
        List<JSONObject> taken = new ArrayList<>(count);
        while (taken.size() < count) {
            JSONObject message = received.poll(deadline - System.nanoTime(), TimeUnit.NANOSECONDS);
            if (message == null) {
                break;
            }
            taken.add(message);
        }
        return taken;
    }

    /** Who the consumer is, which queues of which topics it has been given, and how many messages it has pulled and not dealt with. */
    JSONObject state(JSONObject command) {
        DefaultMQPushConsumer consumer = running.get(command.getIntValue("handle")).consumer();
        JSONObject state = new JSONObject();
        state.put("client_id", consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId());
        List<JSONObject> queues = new ArrayList<>();
        AtomicLong held = new AtomicLong();
        consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().forEach((queue, processed) -> {
            if (!processed.isDropped()) {
                queues.add(Driver.describe(queue));
                held.addAndGet(processed.getMsgCount().get());
            }
        });
        consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getPopProcessQueueTable().forEach((queue, processed) -> {
            if (!processed.isDropped()) {
                queues.add(Driver.describe(queue));
            }
        });
        state.put("queues", queues);
        state.put("held", held.get());
        return state;
    }

    /** Stops a consumer and returns what it received and nobody took. */
    List<JSONObject> stop(JSONObject command) {
        Running stopped = running.remove(command.getIntValue("handle"));
        stopped.consumer().shutdown();
        return new ArrayList<>(stopped.received());
    }

    void stopAll() {
        running.values().forEach(one -> one.consumer().shutdown());
    }
}
