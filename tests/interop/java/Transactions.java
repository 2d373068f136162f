import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Transactions: each message says in its property `end` how its transaction ends, at once (`commit`, `rollback`) or when the broker asks
 * (`check commit`, `check rollback`, and `check never`, which stays unknown).
 */
final class Transactions {
    private final Map<Integer, Running> running = new HashMap<>();
    private int lastHandle = 0;

    private record Running(TransactionMQProducer producer, List<JSONObject> asked) {
    }

    JSONObject start(JSONObject command) throws Exception {
        List<JSONObject> asked = new CopyOnWriteArrayList<>();
        TransactionMQProducer producer = new TransactionMQProducer(command.getString("group"));
        producer.setNamesrvAddr(command.getString("namesrv"));
        producer.setInstanceName("transactions-" + System.nanoTime());
        Driver.patient(producer);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return state(message.getUserProperty("end"));
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                JSONObject seen = new JSONObject();
                seen.put("topic", message.getTopic());
                seen.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
                seen.put("times", message.getProperty(MessageConst.PROPERTY_TRANSACTION_CHECK_TIMES));
                seen.put("transaction_id", message.getTransactionId());
                asked.add(seen);
                return state(message.getUserProperty("end").replace("check ", ""));
            }
        });
        producer.start();
        List<JSONObject> sent = new ArrayList<>();
        JSONArray messages = command.getJSONArray("messages");
        for (int i = 0; i < messages.size(); i++) {
            JSONObject spec = messages.getJSONObject(i);
            Message message = new Message(command.getString("topic"), "transaction", Base64.getDecoder().decode(spec.getString("body")));
            message.putUserProperty("end", spec.getString("end"));
            TransactionSendResult result = producer.sendMessageInTransaction(message, null);
            JSONObject described = new JSONObject();
            described.put("status", result.getSendStatus().name());
            described.put("msg_id", result.getMsgId());
            described.put("transaction_id", result.getTransactionId());
            described.put("state", result.getLocalTransactionState().name());
            sent.add(described);
        }
        running.put(++lastHandle, new Running(producer, asked));
        JSONObject started = new JSONObject();
        started.put("handle", lastHandle);
        started.put("sent", sent);
        return started;
    }

    private static LocalTransactionState state(String end) {
        return switch (end) {
            case "commit" -> LocalTransactionState.COMMIT_MESSAGE;
            case "rollback" -> LocalTransactionState.ROLLBACK_MESSAGE;
            case "throw" -> throw new IllegalStateException("no database");
            default -> LocalTransactionState.UNKNOW;
        };
    }

    List<JSONObject> asked(JSONObject command) {
        return running.get(command.getIntValue("handle")).asked();
    }

    Object stop(JSONObject command) {
        running.remove(command.getIntValue("handle")).producer().shutdown();
        return null;
    }
}
