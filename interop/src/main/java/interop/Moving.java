package interop;

import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentSkipListSet;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.admin.ConsumeStats;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * An application of RocketMQ whose cluster is moved under it. Arguments: what to do, name server, broker's name.
 * fill: makes a topic and a group, sends, commits half of it, sends one message with a delay. go: tells of topic, group and index, consumes what is
 * left until nothing comes any more, sends some more. roll: the topic on a second broker, then no writes to the first.
 */
public final class Moving {
    private static final String TOPIC = "orders";
    private static final String GROUP = "billing";
    private static final int QUEUES = 4;
    private static final int EACH = 10;

    private final String nameServer;
    private final String broker;
    private final DefaultMQAdminExt admin = new DefaultMQAdminExt(20_000L);
    private final DefaultMQProducer producer = new DefaultMQProducer("web");

    private Moving(String nameServer, String broker) {
        this.nameServer = nameServer;
        this.broker = broker;
    }

    public static void main(String[] args) {
        Run.orHalt(() -> new Moving(args[1], args[2]).run(args[0], args.length > 3 ? args[3] : ""));
    }

    private void run(String what, String label) throws Exception {
        admin.setNamesrvAddr(nameServer);
        admin.setInstanceName("moving");
        admin.start();
        producer.setNamesrvAddr(nameServer);
        producer.setInstanceName("moving-sends");
        producer.start();
        switch (what) {
            case "fill" -> fill();
            case "go" -> go(label);
            default -> roll(label);
        }
        producer.shutdown();
        admin.shutdown();
    }

    private String address(String name) throws Exception {
        return admin.examineBrokerClusterInfo().getBrokerAddrTable().get(name).getBrokerAddrs().get(0L);
    }

    private void fill() throws Exception {
        Run.patiently(() -> admin.createTopic(broker, TOPIC, QUEUES));
        SubscriptionGroupConfig group = new SubscriptionGroupConfig();
        group.setGroupName(GROUP);
        group.setRetryMaxTimes(5);
        admin.createAndUpdateSubscriptionGroupConfig(address(broker), group);
        Thread.sleep(300);
        for (int number = 0; number < QUEUES * EACH; number++) {
            MessageQueue queue = new MessageQueue(TOPIC, broker, number % QUEUES);
            producer.send(new Message(TOPIC, "first", "k-" + number, bytes("first-" + number)), queue);
        }
        for (int queue = 0; queue < QUEUES; queue++) {
            admin.updateConsumeOffset(address(broker), GROUP, new MessageQueue(TOPIC, broker, queue), EACH / 2);
        }
        Message later = new Message(TOPIC, "first", "k-later", bytes("later"));
        later.setDelayTimeLevel(4);
        producer.send(later);
    }

    private void go(String label) throws Exception {
        TopicConfig topic = admin.examineTopicConfig(address(broker), TOPIC);
        SubscriptionGroupConfig group = admin.examineSubscriptionGroupConfig(address(broker), GROUP);
        print(new Json().put("kind", "kept").put("queues", topic.getWriteQueueNums()).put("retries", group.getRetryMaxTimes())
            .put("found", admin.queryMessage(TOPIC, "k-3", 8, 0, Long.MAX_VALUE).getMessageList().size()));
        consume();
        for (int number = 0; number < QUEUES; number++) {
            producer.send(new Message(TOPIC, "more", "k-" + label + number, bytes(label + "-" + number)));
        }
    }

    private void roll(String second) throws Exception {
        TopicConfig topic = new TopicConfig(TOPIC, QUEUES, QUEUES, 6);
        admin.createAndUpdateTopicConfig(address(second), topic);
        for (int tries = 0; tries < 100 && admin.examineTopicRouteInfo(TOPIC).getQueueDatas().size() < 2; tries++) {
            Thread.sleep(100);
        }
        send("both");
        int wiped = admin.wipeWritePermOfBroker(nameServer, broker);
        send("second");
        consume();
        ConsumeStats stats = admin.examineConsumeStats(GROUP);
        long left = stats.getOffsetTable().entrySet().stream().filter(entry -> entry.getKey().getBrokerName().equals(broker))
            .mapToLong(entry -> entry.getValue().getBrokerOffset() - entry.getValue().getConsumerOffset()).sum();
        print(new Json().put("kind", "left").put("messages", left).put("wiped", wiped));
    }

    private void send(String label) throws Exception {
        producer.getDefaultMQProducerImpl().getmQClientFactory().updateTopicRouteInfoFromNameServer(TOPIC);
        Map<String, String> brokers = new TreeMap<>();
        for (int number = 0; number < 2 * QUEUES; number++) {
            SendResult sent = producer.send(new Message(TOPIC, label, "k-" + label + number, bytes(label + "-" + number)));
            brokers.put(sent.getMessageQueue().getBrokerName(), "");
        }
        print(new Json().put("kind", "sent").put("label", label).put("brokers", String.join(",", brokers.keySet())));
    }

    /** Everything that the group has not had, until nothing comes for two seconds after the delayed message, or for eight. */
    private void consume() throws Exception {
        Set<String> bodies = new ConcurrentSkipListSet<>();
        long[] last = {System.currentTimeMillis()};
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(GROUP);
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName("moving-consumes");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(TOPIC, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> bodies.add(new String(message.getBody(), StandardCharsets.UTF_8)));
            last[0] = System.currentTimeMillis();
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        long began = System.currentTimeMillis();
        long patience = Long.getLong("moving.patience", 3_000);
        while (System.currentTimeMillis() - Math.max(began, last[0]) < (bodies.contains("later") ? 2_000 : patience)) {
            Thread.sleep(100);
        }
        consumer.shutdown();
        print(new Json().put("kind", "consumed").put("bodies", String.join(" ", List.copyOf(bodies))));
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static void print(Json line) {
        System.out.println(line);
        System.out.flush();
    }
}
