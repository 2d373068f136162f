import com.alibaba.fastjson2.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Requests and their replies: a request waits for the reply; a replier answers every request to a topic with its body in capitals.
 */
final class Requests {
    private final Map<Integer, Replier> repliers = new HashMap<>();
    private int lastHandle = 0;

    private record Replier(DefaultMQPushConsumer consumer, DefaultMQProducer producer) {
    }

    static JSONObject request(DefaultMQProducer producer, JSONObject command) throws Exception {
        Message request = new Message(command.getString("topic"), Base64.getDecoder().decode(command.getString("body")));
        Message reply = producer.request(request, command.getLongValue("timeout_ms"));
        JSONObject described = new JSONObject();
        described.put("topic", reply.getTopic());
        described.put("body", Base64.getEncoder().encodeToString(reply.getBody()));
        described.put("tag", reply.getTags());
        described.put("properties", new HashMap<>(reply.getProperties()));
        return described;
    }

    int start(JSONObject command) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("interop_java_replier");
        producer.setNamesrvAddr(command.getString("namesrv"));
        producer.setInstanceName("replying-" + System.nanoTime());
        Driver.patient(producer);
        producer.start();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(command.getString("group"));
        consumer.setNamesrvAddr(command.getString("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setInstanceName("answering-" + System.nanoTime());
        consumer.subscribe(command.getString("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            for (MessageExt message : batch) {
                String body = new String(message.getBody(), StandardCharsets.UTF_8).toUpperCase(Locale.ROOT);
                try {
                    Message reply = MessageUtil.createReplyMessage(message, body.getBytes(StandardCharsets.UTF_8));
                    reply.setTags("FromJava");
                    producer.send(reply);
                } catch (Exception e) {
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        MQClientInstance instance = consumer.getDefaultMQPushConsumerImpl().getmQClientFactory();
        Consumers.soonAfter(instance);
        repliers.put(++lastHandle, new Replier(consumer, producer));
        return lastHandle;
    }

    Object stop(JSONObject command) {
        Replier replier = repliers.remove(command.getIntValue("handle"));
        replier.consumer().shutdown();
        replier.producer().shutdown();
        return null;
    }
}
