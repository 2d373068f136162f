import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * Measures Apache's Java client of version 5, plain: ENDPOINT TOPIC GROUP. Each line of input is `send COUNT IN_FLIGHT BODY_BYTES`,
 * `receive COUNT IN_FLIGHT`, which receives 32 at a time and acknowledges each, or `end`. Each is answered by `done SECONDS CPU_SECONDS`.
 */
public final class Rates {
    public static void main(String[] arguments) throws Exception {
        ClientServiceProvider provider = ClientServiceProvider.loadService();
        String topic = arguments[1];
        ClientConfiguration configuration = ClientConfiguration.newBuilder()
                .setEndpoints(arguments[0])
                .enableSsl(false)
                .setRequestTimeout(Duration.ofSeconds(10))
                .build();
        Producer producer = provider.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic).build();
        SimpleConsumer consumer = provider.newSimpleConsumerBuilder()
                .setClientConfiguration(configuration)
                .setConsumerGroup(arguments[2])
                .setAwaitDuration(Duration.ofSeconds(1))
                .setSubscriptionExpressions(Map.of(topic, FilterExpression.SUB_ALL))
                .build();
        System.out.println("ready");
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = input.readLine()) != null && !line.equals("end");) {
            String[] words = line.split(" ");
            int count = Integer.parseInt(words[1]);
            int inFlight = Integer.parseInt(words[2]);
            AtomicReference<Throwable> failure = new AtomicReference<>();
            long cpu = cpuNanos();
            long began = System.nanoTime();
            if (words[0].equals("send")) {
                Message message = provider.newMessageBuilder().setTopic(topic).setBody(new byte[Integer.parseInt(words[3])]).build();
                send(producer, message, count, inFlight, failure);
            } else {
                receive(consumer, count, inFlight, failure);
            }
            double seconds = (System.nanoTime() - began) / 1e9;
            if (failure.get() != null) {
                failure.get().printStackTrace();
                System.out.println("failed");
                break;
            }
            System.out.println("done " + seconds + " " + (cpuNanos() - cpu) / 1e9);
        }
        System.exit(0);
    }

    private static void send(Producer producer, Message message, int count, int inFlight, AtomicReference<Throwable> failure)
            throws InterruptedException {
        Semaphore free = new Semaphore(inFlight);
        for (int i = 0; i < count && failure.get() == null; i++) {
            free.acquire();
            producer.sendAsync(message).whenComplete((receipt, error) -> {
                if (error != null) {
                    failure.set(error);
                }
                free.release();
            });
        }
        free.acquire(inFlight);
    }

    private static void receive(SimpleConsumer consumer, int count, int inFlight, AtomicReference<Throwable> failure)
            throws InterruptedException {
        AtomicInteger left = new AtomicInteger(count);
        CountDownLatch done = new CountDownLatch(count);
        for (int i = 0; i < inFlight; i++) {
            more(consumer, left, done, failure);
        }
        while (done.getCount() > 0 && failure.get() == null) {
            done.await(100, java.util.concurrent.TimeUnit.MILLISECONDS);
        }
    }

    private static void more(SimpleConsumer consumer, AtomicInteger left, CountDownLatch done, AtomicReference<Throwable> failure) {
        if (left.get() <= 0 || failure.get() != null) {
            return;
        }
        consumer.receiveAsync(32, Duration.ofSeconds(60)).whenComplete((messages, error) -> {
            if (error != null) {
                failure.set(error);
                return;
            }
            AtomicInteger unacknowledged = new AtomicInteger(messages.size());
            left.addAndGet(-messages.size());
            if (messages.isEmpty()) {
                more(consumer, left, done, failure);
            }
            for (MessageView message : messages) {
                consumer.ackAsync(message).whenComplete((nothing, refusal) -> {
                    if (refusal != null) {
                        failure.set(refusal);
                    }
                    done.countDown();
                    if (unacknowledged.decrementAndGet() == 0) {
                        more(consumer, left, done, failure);
                    }
                });
            }
        });
    }

    private static long cpuNanos() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }
}
