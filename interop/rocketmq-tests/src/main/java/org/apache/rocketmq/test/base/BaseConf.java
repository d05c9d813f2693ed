package org.apache.rocketmq.test.base;

import java.util.ArrayList;
import java.util.List;

import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.test.client.rmq.RMQAsyncSendProducer;
import org.apache.rocketmq.test.client.rmq.RMQNormalConsumer;
import org.apache.rocketmq.test.client.rmq.RMQNormalProducer;
import org.apache.rocketmq.test.client.rmq.RMQTransactionalProducer;
import org.apache.rocketmq.test.clientinterface.AbstractMQConsumer;
import org.apache.rocketmq.test.clientinterface.AbstractMQProducer;
import org.apache.rocketmq.test.factory.ConsumerFactory;
import org.apache.rocketmq.test.listener.AbstractListener;
import org.apache.rocketmq.test.util.MQAdmin;
import org.apache.rocketmq.test.util.MQRandomUtils;

/**
 * Stands before the class of the same name on the class path: RocketMQ's integration tests ask it
 * where name server and brokers are. Theirs starts Apache's; this one names a cluster that runs,
 * by the system properties suite.nameServer, suite.cluster, suite.broker1 and suite.broker2.
 */
public class BaseConf {
    public static String nsAddr = System.getProperty("suite.nameServer");
    protected static String broker1Name = System.getProperty("suite.broker1");
    protected static String broker2Name = System.getProperty("suite.broker2");
    protected static String clusterName = System.getProperty("suite.cluster");
    protected static int brokerNum = 2;
    protected static int waitTime = 5;
    protected static int consumeTime = 2 * 60 * 1000;
    protected static List<Object> mqClients = new ArrayList<>();
    protected static boolean debug = false;

    public static String initTopic() {
        return initTopicWithName(MQRandomUtils.getRandomTopic());
    }

    public static String initTopicWithName(String topic) {
        IntegrationTestBase.initTopic(topic, nsAddr, clusterName);
        return topic;
    }

    public static String initConsumerGroup() {
        return initConsumerGroup(MQRandomUtils.getRandomConsumerGroup());
    }

    public static String initConsumerGroup(String group) {
        MQAdmin.createSub(nsAddr, clusterName, group);
        return group;
    }

    public static RMQNormalProducer getProducer(String nameServer, String topic) {
        return getProducer(nameServer, topic, false);
    }

    public static RMQNormalProducer getProducer(String nameServer, String topic, boolean useTls) {
        return remembered(new RMQNormalProducer(nameServer, topic, useTls));
    }

    public static RMQNormalProducer getProducer(
            String nameServer, String topic, String group, String instance) {
        return remembered(new RMQNormalProducer(nameServer, topic, group, instance));
    }

    public static RMQTransactionalProducer getTransactionalProducer(
            String nameServer, String topic, TransactionListener listener) {
        return remembered(new RMQTransactionalProducer(nameServer, topic, false, listener));
    }

    public static RMQAsyncSendProducer getAsyncProducer(String nameServer, String topic) {
        return remembered(new RMQAsyncSendProducer(nameServer, topic));
    }

    public static RMQNormalConsumer getConsumer(
            String nameServer, String topic, String tags, AbstractListener listener) {
        return getConsumer(nameServer, topic, tags, listener, false);
    }

    public static RMQNormalConsumer getConsumer(
            String nameServer, String topic, String tags, AbstractListener listener, boolean useTls) {
        return getConsumer(nameServer, initConsumerGroup(), topic, tags, listener, useTls);
    }

    public static RMQNormalConsumer getConsumer(
            String nameServer, String group, String topic, String tags, AbstractListener listener) {
        return getConsumer(nameServer, group, topic, tags, listener, false);
    }

    public static RMQNormalConsumer getConsumer(
            String nameServer, String group, String topic, String tags, AbstractListener listener,
            boolean useTls) {
        RMQNormalConsumer consumer =
                ConsumerFactory.getRMQNormalConsumer(nameServer, group, topic, tags, listener, useTls);
        mqClients.add(consumer);
        return consumer;
    }

    public static void shutdown() {
        for (Object client : mqClients) {
            if (client instanceof AbstractMQProducer) {
                ((AbstractMQProducer) client).shutdown();
            } else if (client instanceof AbstractMQConsumer) {
                ((AbstractMQConsumer) client).shutdown();
            }
        }
        mqClients.clear();
    }

    private static <T> T remembered(T client) {
        mqClients.add(client);
        return client;
    }
}
