import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * Sends, receives and listens with Apache's Java client of version 5: ENDPOINT TOPIC SIMPLE_GROUP PUSH_GROUP [plain]. Without `plain` the
 * client encrypts, as it does unless told otherwise. Prints one line for each message: `sent ID`, `received BODY TAG KEY ATTEMPT`,
 * `handled BODY ATTEMPT`. The listener fails for `m2` the first time.
 */
public final class Modern {
    private static final int COUNT = 4;

    public static void main(String[] arguments) throws Exception {
        ClientServiceProvider provider = ClientServiceProvider.loadService();
        String topic = arguments[1];
        ClientConfiguration configuration = ClientConfiguration.newBuilder()
                .setEndpoints(arguments[0])
                .enableSsl(arguments.length < 5)
                .setRequestTimeout(Duration.ofSeconds(30))
                .build();
        Producer producer = provider.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic).build();
        for (int i = 0; i < COUNT; i++) {
            byte[] body = ("m" + i).getBytes(StandardCharsets.UTF_8);
            System.out.println("sent " + producer.send(provider.newMessageBuilder()
                    .setTopic(topic).setTag("t").setKeys("k" + i).setBody(body).build()).getMessageId());
        }
        SimpleConsumer simple = provider.newSimpleConsumerBuilder()
                .setClientConfiguration(configuration)
                .setConsumerGroup(arguments[2])
                .setAwaitDuration(Duration.ofSeconds(10))
                .setSubscriptionExpressions(Map.of(topic, new FilterExpression("t")))
                .build();
        for (int received = 0; received < COUNT;) {
            for (MessageView message : simple.receive(16, Duration.ofSeconds(30))) {
                System.out.println("received " + text(message) + " " + message.getTag().get() + " " + List.copyOf(message.getKeys()).get(0)
                        + " " + message.getDeliveryAttempt());
                simple.ack(message);
                received++;
            }
        }
        simple.close();
        CountDownLatch handled = new CountDownLatch(COUNT + 1);
        PushConsumer push = provider.newPushConsumerBuilder()
                .setClientConfiguration(configuration)
                .setConsumerGroup(arguments[3])
                .setSubscriptionExpressions(Map.of(topic, FilterExpression.SUB_ALL))
                .setMessageListener(message -> {
                    boolean fails = text(message).equals("m2") && message.getDeliveryAttempt() == 1;
                    System.out.println("handled " + text(message) + " " + message.getDeliveryAttempt());
                    handled.countDown();
                    return fails ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
                })
                .build();
        handled.await(90, TimeUnit.SECONDS);
        push.close();
        producer.close();
        System.exit(0);
    }

    private static String text(MessageView message) {
        return StandardCharsets.UTF_8.decode(message.getBody()).toString();
    }
}
