package interop;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * A member of two groups, one that consumes a topic's messages at once and one that consumes another topic's in order, beside members of other
 * kinds. Sends some messages to the first topic, then tells every message it gets and which queues it holds, until its input ends or it is killed.
 * Arguments: name server, its name, how many messages to send.
 */
public final class GroupMember {
    private static final int RETRIED = 10;

    private GroupMember() {
    }

    public static void main(String[] args) {
        Run.orHalt(() -> run(args[0], args[1], Integer.parseInt(args[2])));
    }

    private static void run(String nameServer, String name, int sends) throws Exception {
        DefaultMQPushConsumer free = consumer(nameServer, name, "mixed-free", "Free");
        free.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            boolean again = false;
            for (MessageExt message : messages) {
                told("free", message);
                again |= message.getReconsumeTimes() == 0 && message.getQueueOffset() % RETRIED == 5;
            }
            context.setDelayLevelWhenNextConsume(1);
            return again ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        DefaultMQPushConsumer ordered = consumer(nameServer, name, "mixed-ordered", "Ordered");
        Set<String> failed = ConcurrentHashMap.newKeySet();
        ordered.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            MessageExt message = messages.get(0);
            if (message.getQueueOffset() % RETRIED == 5 && failed.add(message.getQueueId() + "/" + message.getQueueOffset())) {
                context.setSuspendCurrentQueueTimeMillis(20);
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            }
            told("ordered", message);
            return ConsumeOrderlyStatus.SUCCESS;
        });
        free.start();
        ordered.start();
        send(nameServer, name, sends);
        Thread teller = new Thread(() -> {
            while (true) {
                held("free", free);
                held("ordered", ordered);
                try {
                    Thread.sleep(200);
                } catch (InterruptedException ended) {
                    return;
                }
            }
        });
        teller.setDaemon(true);
        teller.start();
        while (System.in.read() >= 0) {
            continue;
        }
        teller.interrupt();
        free.shutdown();
        ordered.shutdown();
        print(new Json().put("kind", "left"));
    }

    private static DefaultMQPushConsumer consumer(String nameServer, String name, String group, String topic) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(name);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        return consumer;
    }

    private static void send(String nameServer, String name, int sends) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("mixed-" + name);
        producer.setNamesrvAddr(nameServer);
        producer.setInstanceName(name + "-sends");
        producer.start();
        for (int number = 0; number < sends; number++) {
            Message message = new Message("Free", "java", name + "-" + number + " second", (name + "-" + number).getBytes(StandardCharsets.UTF_8));
            message.putUserProperty("city", "Z\u00fcrich");
            producer.send(message);
        }
        producer.shutdown();
    }

    private static void told(String group, MessageExt message) {
        Map<String, String> properties = new TreeMap<>(message.getProperties());
        print(new Json().put("kind", "got").put("group", group).put("at", System.currentTimeMillis()).put("topic", message.getTopic())
            .put("queue", message.getQueueId()).put("offset", message.getQueueOffset()).put("times", message.getReconsumeTimes())
            .put("body", new String(message.getBody(), StandardCharsets.UTF_8)).put("id", message.getMsgId()).put("tag", message.getTags())
            .put("keys", message.getKeys()).put("born", message.getBornTimestamp()).put("stored", message.getStoreTimestamp()).put("properties", properties));
    }

    private static void held(String group, DefaultMQPushConsumer consumer) {
        List<Long> queues = new ArrayList<>();
        consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().forEach((queue, work) -> {
            if (!queue.getTopic().startsWith("%") && !work.isDropped()) {
                queues.add((long) ((MessageQueue) queue).getQueueId());
            }
        });
        print(new Json().put("kind", "held").put("group", group).put("queues", queues));
    }

    private static synchronized void print(Json line) {
        System.out.println(line);
        System.out.flush();
    }
}
