package org.apache.rocketmq.test.base;

import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.Deque;
import java.util.HashMap;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.offset.ConsumerOffsetManager;
import org.apache.rocketmq.broker.subscription.SubscriptionGroupManager;
import org.apache.rocketmq.broker.topic.TopicConfigManager;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicAttributes;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.attribute.CQType;
import org.apache.rocketmq.common.attribute.TopicMessageType;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.remoting.protocol.admin.OffsetWrapper;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.test.util.MQAdminTestUtils;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Stands on the class path before the class of this name in Apache's jar of tests, which starts Apache's nameserver and brokers in the process
 * of the tests. Here the servers run already: the tests get objects of Apache's classes that were never started, and that pass on to the
 * servers what tests ask brokers inside their process.
 *
 * <p>Property {@code servers}: the nameserver's port, then name and port of each broker, as in {@code 9876,broker-a=10911,...}.
 */
public class IntegrationTestBase {
    private static final String CLUSTER = "DefaultCluster";
    private static final String LOOPBACK = "127.0.0.1";
    private static final int CREATE_TIMEOUT_S = 30;
    private static final Deque<String> SERVERS = new ArrayDeque<>(Arrays.asList(System.getProperty("servers").split(",")));

    private static DefaultMQAdminExt admin;

    public static String createBaseDir() {
        return Path.of(System.getProperty("java.io.tmpdir"), UUID.randomUUID().toString()).toString();
    }

    public static NamesrvController createAndStartNamesrv() {
        NettyServerConfig listening = new NettyServerConfig();
        listening.setListenPort(Integer.parseInt(SERVERS.removeFirst()));
        return new NamesrvController(new NamesrvConfig(), listening);
    }

    public static BrokerController createAndStartBroker(String namesrv) {
        return new Remote(namesrv, SERVERS.removeFirst().split("=")).controller();
    }

    public static BrokerController createAndStartBroker(MessageStoreConfig store, BrokerConfig broker) {
        throw new UnsupportedOperationException("the test wants a broker of its own, with settings of its own");
    }

    public static void initMQAdmin(String namesrv) {
        asked(() -> {
            MQAdminTestUtils.startAdmin(namesrv);
            return null;
        });
    }

    public static boolean initTopic(String topic, String namesrv, String cluster, CQType queues) {
        return initTopic(topic, namesrv, cluster, BaseConf.QUEUE_NUMBERS, queues, TopicMessageType.NORMAL);
    }

    public static boolean initTopic(String topic, String namesrv, String cluster, TopicMessageType type) {
        return initTopic(topic, namesrv, cluster, BaseConf.QUEUE_NUMBERS, CQType.SimpleCQ, type);
    }

    public static boolean initTopic(String topic, String namesrv, String cluster, int count, CQType queues) {
        return initTopic(topic, namesrv, cluster, count, queues, TopicMessageType.NORMAL);
    }

    public static boolean initTopic(String topic, String namesrv, String cluster, int count, CQType queues, TopicMessageType type) {
        Map<String, String> attributes = new HashMap<>();
        if (queues != CQType.SimpleCQ) {
            attributes.put("+" + TopicAttributes.QUEUE_TYPE_ATTRIBUTE.getName(), queues.toString());
        }
        if (type != TopicMessageType.NORMAL) {
            attributes.put("+" + TopicAttributes.TOPIC_MESSAGE_TYPE_ATTRIBUTE.getName(), type.getValue());
        }
        return MQAdminTestUtils.createTopic(namesrv, cluster, topic, count, attributes, CREATE_TIMEOUT_S);
    }

    private static synchronized DefaultMQAdminExt admin(String namesrv) throws Exception {
        if (admin == null) {
            DefaultMQAdminExt started = new DefaultMQAdminExt();
            started.setNamesrvAddr(namesrv);
            started.setInstanceName("remote brokers");
            started.start();
            admin = started;
        }
        return admin;
    }

    private static <T> T asked(Callable<T> question) {
        try {
            return question.call();
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
    }

    /** A broker that runs in another process. */
    private static final class Remote {
        private final String namesrv;
        private final String name;
        private final int port;
        private final String address;

        Remote(String namesrv, String[] nameAndPort) {
            this.namesrv = namesrv;
            this.name = nameAndPort[0];
            this.port = Integer.parseInt(nameAndPort[1]);
            this.address = LOOPBACK + ":" + port;
        }

        BrokerController controller() {
            BrokerConfig broker = new BrokerConfig();
            broker.setBrokerName(name);
            broker.setBrokerIP1(LOOPBACK);
            broker.setListenPort(port);
            broker.setNamesrvAddr(namesrv);
            broker.setBrokerClusterName(CLUSTER);
            NettyServerConfig listening = new NettyServerConfig();
            listening.setListenPort(port);
            MessageStoreConfig store = new MessageStoreConfig();
            store.setStorePathRootDir(createBaseDir());
            BrokerController controller = new BrokerController(broker, listening, new NettyClientConfig(), store);
            controller.getBrokerOuterAPI().updateNameServerAddressList(namesrv);
            controller.getBrokerOuterAPI().start();
            controller.setTopicConfigManager(topics(controller));
            controller.setSubscriptionGroupManager(groups(controller));
            controller.setConsumerOffsetManager(offsets(controller));
            controller.setMessageStore(asked(() -> store(controller)));
            return controller;
        }

        private TopicConfig topic(String topic) {
            return asked(() -> admin(namesrv).examineTopicConfig(address, topic));
        }

        private TopicConfigManager topics(BrokerController controller) {
            return new TopicConfigManager(controller) {
                @Override
                public ConcurrentMap<String, TopicConfig> getTopicConfigTable() {
                    return new ConcurrentHashMap<>() {
                        @Override
                        public TopicConfig get(Object topic) {
                            return topic((String) topic);
                        }
                    };
                }
            };
        }

        private SubscriptionGroupManager groups(BrokerController controller) {
            return new SubscriptionGroupManager(controller) {
                @Override
                public SubscriptionGroupConfig findSubscriptionGroupConfig(String group) {
                    SubscriptionGroupConfig known = asked(() -> admin(namesrv).examineSubscriptionGroupConfig(address, group));
                    if (known == null) {
                        known = new SubscriptionGroupConfig();
                        known.setGroupName(group);
                    }
                    return known;
                }

                @Override
                public void updateSubscriptionGroupConfig(SubscriptionGroupConfig group) {
                    asked(() -> {
                        admin(namesrv).createAndUpdateSubscriptionGroupConfig(address, group);
                        return null;
                    });
                }
            };
        }

        private ConsumerOffsetManager offsets(BrokerController controller) {
            return new ConsumerOffsetManager(controller) {
                private OffsetWrapper offsets(String group, String topic, int queue) {
                    return asked(() -> admin(namesrv).getDefaultMQAdminExtImpl().getMqClientInstance().getMQClientAPIImpl()
                        .getConsumeStats(address, group, topic, 3000).getOffsetTable().get(new MessageQueue(topic, name, queue)));
                }

                @Override
                public long queryOffset(String group, String topic, int queue) {
                    return offsets(group, topic, queue).getConsumerOffset();
                }

                @Override
                public long queryPullOffset(String group, String topic, int queue) {
                    return offsets(group, topic, queue).getPullOffset();
                }
            };
        }

        private DefaultMessageStore store(BrokerController controller) throws IOException {
            return new DefaultMessageStore(controller.getMessageStoreConfig(), controller.getBrokerStatsManager(),
                (topic, queue, offset, tags, time, filter, properties) -> { }, controller.getBrokerConfig(), new ConcurrentHashMap<>()) {
                @Override
                public long getMaxOffsetInQueue(String topic, int queue) {
                    return asked(() -> admin(namesrv).maxOffset(new MessageQueue(topic, name, queue)));
                }

                @Override
                public long getMaxOffsetInQueue(String topic, int queue, boolean committed) {
                    return getMaxOffsetInQueue(topic, queue);
                }

                @Override
                public long getMinOffsetInQueue(String topic, int queue) {
                    // The store says so of an empty batch queue; over the wire it is 0.
                    String type = topic(topic).getAttributes().get(TopicAttributes.QUEUE_TYPE_ATTRIBUTE.getName());
                    if (CQType.BatchCQ.toString().equals(type) && getMaxOffsetInQueue(topic, queue) == 0) {
                        return -1;
                    }
                    return asked(() -> admin(namesrv).minOffset(new MessageQueue(topic, name, queue)));
                }

                @Override
                public long dispatchBehindBytes() {
                    return asked(() -> Long.parseLong(admin(namesrv).fetchBrokerRuntimeStats(address).getTable().get("dispatchBehindBytes")));
                }
            };
        }
    }
}
