package interop;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * An unmodified Java client consumes in order: a failure in the middle of a queue, a dead letter, another consumer of the group afterwards. Arguments: name server,
 * and "dead" where the dead letter is to be looked at: RocketMQ's own broker has it 30 s later, for it goes through the delay topic there.
 */
public final class OrderlyCheck {
    private static final String TOPIC = "InOrder";
    private static final String GROUP = "java-orderly";
    private static final int QUEUES = 3;
    private static final int EACH = 8;

    private final String nameServer;

    private final boolean looksAtDeadLetter;

    private OrderlyCheck(String nameServer, boolean looksAtDeadLetter) {
        this.nameServer = nameServer;
        this.looksAtDeadLetter = looksAtDeadLetter;
    }

    public static void main(String[] args) {
        Run.orHalt(() -> new OrderlyCheck(args[0], args.length > 1).check());
    }

    private void check() throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(20_000L);
        admin.setNamesrvAddr(nameServer);
        admin.setInstanceName("admin");
        admin.start();
        Run.patiently(() -> admin.createTopic("broker-a", TOPIC, QUEUES));
        Thread.sleep(500);
        FirstCommit.of(admin, GROUP, TOPIC);
        DefaultMQProducer producer = new DefaultMQProducer("java-producers");
        producer.setNamesrvAddr(nameServer);
        producer.setInstanceName("producer");
        producer.start();
        send(producer, 0);
        consume("first", 0);
        committed(admin);
        if (looksAtDeadLetter) {
            dead();
        }
        send(producer, EACH);
        consume("second", EACH);
        print(new Json().put("check", "progress").put("diff", admin.examineConsumeStats(GROUP, TOPIC).computeTotalDiff()));
        producer.shutdown();
        admin.shutdown();
    }

    /** What the broker knows of the first consumer, before another one comes. */
    private void committed(DefaultMQAdminExt admin) throws Exception {
        TreeMap<Integer, Long> offsets = new TreeMap<>();
        admin.examineConsumeStats(GROUP, TOPIC).getOffsetTable().forEach((queue, of) -> offsets.put(queue.getQueueId(), of.getConsumerOffset()));
        print(new Json().put("check", "committed").put("offsets", offsets.toString()));
    }

    private void send(DefaultMQProducer producer, int from) throws Exception {
        for (int i = from; i < from + EACH; i++) {
            for (int queue = 0; queue < QUEUES; queue++) {
                Message message = new Message(TOPIC, Integer.toString(i).getBytes(StandardCharsets.UTF_8));
                producer.send(message, (queues, ignored, number) -> queues.get((Integer) number), queue);
            }
        }
    }

    /** Number 2 of each queue fails once, number 5 of queue 1 for ever: at most 1 retry, so it becomes a dead letter. */
    private void consume(String who, int from) throws Exception {
        TreeMap<Integer, List<String>> got = new TreeMap<>();
        AtomicInteger together = new AtomicInteger();
        CountDownLatch done = new CountDownLatch(QUEUES);
        DefaultMQPushConsumer consumer = consumer(GROUP, who);
        consumer.setMaxReconsumeTimes(1);
        consumer.setSuspendCurrentQueueTimeMillis(50);
        consumer.subscribe(TOPIC, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            MessageExt message = messages.get(0);
            int number = Integer.parseInt(new String(message.getBody(), StandardCharsets.UTF_8));
            int queue = message.getQueueId();
            synchronized (got) {
                got.computeIfAbsent(queue, ignored -> new ArrayList<>()).add(number + "/" + message.getReconsumeTimes());
            }
            if ((number == 2 && message.getReconsumeTimes() == 0) || (number == 5 && queue == 1)) {
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            }
            if (number == from + EACH - 1) {
                together.incrementAndGet();
                done.countDown();
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        boolean all = done.await(60, TimeUnit.SECONDS);
        Thread.sleep(300);
        consumer.shutdown();
        for (int queue : got.keySet()) {
            print(new Json().put("check", "queue").put("who", who).put("queue", queue).put("got", String.join(" ", got.get(queue))));
        }
        print(new Json().put("check", "all").put("who", who).put("all", all ? 1 : 0).put("ended", together.get()));
    }

    private void dead() throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("java-undertaker");
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName("undertaker");
        consumer.start();
        List<String> bodies = new ArrayList<>();
        for (int attempt = 0; attempt < 100 && bodies.isEmpty(); attempt++) {
            Thread.sleep(100);
            PullResult result = consumer.pull(new MessageQueue("%DLQ%" + GROUP, "broker-a", 0), "*", 0, 32);
            for (MessageExt message : result.getPullStatus() == PullStatus.FOUND ? result.getMsgFoundList() : new ArrayList<MessageExt>()) {
                bodies.add(new String(message.getBody(), StandardCharsets.UTF_8) + "/" + message.getReconsumeTimes() + "/" + message.getProperty("RETRY_TOPIC"));
            }
        }
        print(new Json().put("check", "dead").put("came", bodies.size()).put("bodies", String.join(",", bodies)));
        consumer.shutdown();
    }

    private DefaultMQPushConsumer consumer(String group, String instance) {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(instance);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        return consumer;
    }

    private static void print(Json line) {
        System.out.println(line);
        System.out.flush();
    }
}
