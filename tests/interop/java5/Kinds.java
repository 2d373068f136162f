import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * The types of messages with Apache's Java client of version 5: ENDPOINT and pairs of TOPIC GROUP for FIFO, delay, transaction and dead
 * letters. Prints one line for each message: `fifo MESSAGE_GROUP BODY ATTEMPT`, `delayed BODY MS_SINCE_SENT`, `asked BODY`, `ended BODY`,
 * `failed BODY ATTEMPT`. Runs until it is killed: the client gives a dead letter away after its listener has returned.
 */
public final class Kinds {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static ClientConfiguration configuration;

    public static void main(String[] arguments) throws Exception {
        configuration = ClientConfiguration.newBuilder()
                .setEndpoints(arguments[0])
                .enableSsl(false)
                .setRequestTimeout(Duration.ofSeconds(30))
                .build();
        inOrder(arguments[1], arguments[2]);
        delayed(arguments[3], arguments[4]);
        transactions(arguments[5], arguments[6]);
        deadLetters(arguments[7], arguments[8]);
    }

    /** Two message groups; the listener fails once for x2. */
    private static void inOrder(String topic, String group) throws Exception {
        try (Producer producer = producer(topic)) {
            for (int i = 0; i < 5; i++) {
                for (String messageGroup : new String[] {"x", "y"}) {
                    producer.send(message(topic, messageGroup + i).setMessageGroup(messageGroup).build());
                }
            }
        }
        listen(topic, group, 11, message -> {
            boolean fails = text(message).equals("x2") && message.getDeliveryAttempt() == 1;
            System.out.println("fifo " + message.getMessageGroup().get() + " " + text(message) + " " + message.getDeliveryAttempt());
            return fails ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
        });
    }

    private static void delayed(String topic, String group) throws Exception {
        long sent = System.currentTimeMillis();
        try (Producer producer = producer(topic)) {
            producer.send(message(topic, "later").setDeliveryTimestamp(sent + 5_000).build());
        }
        receive(topic, group, 1, message -> System.out.println("delayed " + text(message) + " " + (System.currentTimeMillis() - sent)));
    }

    /** One is committed, one rolled back, and the broker asks about the third. */
    private static void transactions(String topic, String group) throws Exception {
        Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic)
                .setTransactionChecker(message -> {
                    System.out.println("asked " + text(message));
                    return TransactionResolution.COMMIT;
                }).build();
        try (producer) {
            for (String body : new String[] {"kept", "dropped", "unknown"}) {
                Transaction transaction = producer.beginTransaction();
                producer.send(message(topic, body).build(), transaction);
                if (body.equals("kept")) {
                    transaction.commit();
                } else if (body.equals("dropped")) {
                    transaction.rollback();
                }
            }
            receive(topic, group, 2, message -> System.out.println("ended " + text(message)));
        }
    }

    /** What fails is delivered as often as the group allows. */
    private static void deadLetters(String topic, String group) throws Exception {
        try (Producer producer = producer(topic)) {
            producer.send(message(topic, "bad").build());
        }
        consumer(topic, group, message -> {
            System.out.println("failed " + text(message) + " " + message.getDeliveryAttempt());
            return ConsumeResult.FAILURE;
        });
    }

    private static Producer producer(String topic) throws Exception {
        return PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic).build();
    }

    private static MessageBuilder message(String topic, String body) {
        return PROVIDER.newMessageBuilder().setTopic(topic).setBody(body.getBytes(StandardCharsets.UTF_8));
    }

    private interface Handler {
        ConsumeResult handle(MessageView message);
    }

    private interface Taker {
        void take(MessageView message);
    }

    /** Handles so many deliveries with a push consumer. */
    private static void listen(String topic, String group, int count, Handler handler) throws Exception {
        CountDownLatch handled = new CountDownLatch(count);
        PushConsumer consumer = consumer(topic, group, message -> {
            try {
                return handler.handle(message);
            } finally {
                handled.countDown();
            }
        });
        try (consumer) {
            handled.await(90, TimeUnit.SECONDS);
        }
    }

    private static PushConsumer consumer(String topic, String group, Handler handler) throws Exception {
        return PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(group)
                .setSubscriptionExpressions(Map.of(topic, FilterExpression.SUB_ALL)).setMessageListener(handler::handle).build();
    }

    /** Receives and acknowledges so many messages with a simple consumer. */
    private static void receive(String topic, String group, int count, Taker taker) throws Exception {
        SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(group)
                .setAwaitDuration(Duration.ofSeconds(10))
                .setSubscriptionExpressions(Map.of(topic, FilterExpression.SUB_ALL)).build();
        try (consumer) {
            for (int received = 0; received < count;) {
                for (MessageView message : consumer.receive(16, Duration.ofSeconds(30))) {
                    taker.take(message);
                    consumer.ack(message);
                    received++;
                }
            }
        }
    }

    private static String text(MessageView message) {
        return StandardCharsets.UTF_8.decode(message.getBody().duplicate()).toString();
    }
}
