package interop;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * An unmodified Java client does what applications do, and tells what it got as lines; the test judges. Argument: name server.
 * Compiled for 4.9.7 and, by interop/five, for 5.3, where some classes that it uses without a name lie in other packages.
 */
public final class ClientCheck {
    private static final String TOPIC = "FromJava";
    private static final String GROUP = "java-group";
    private static final int NO_MESSAGE = 208; // of 4.x and 5.x alike, in classes of different names

    private final String nameServer;
    private DefaultMQProducer producer;

    private ClientCheck(String nameServer) {
        this.nameServer = nameServer;
    }

    public static void main(String[] args) {
        Run.orHalt(() -> new ClientCheck(args[0]).check());
    }

    private void check() throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(20_000L);
        admin.setNamesrvAddr(nameServer);
        admin.setInstanceName("admin");
        admin.start();
        Run.patiently(() -> {
            var broker = admin.examineBrokerClusterInfo().getBrokerAddrTable().get("broker-a");
            if (broker == null) {
                throw new MQClientException("broker-a has not registered yet", null);
            }
            admin.createAndUpdateTopicConfig(broker.getBrokerAddrs().get(0L), new TopicConfig(TOPIC, 3, 3, 6));
        });
        Thread.sleep(500);
        var route = admin.examineTopicRouteInfo(TOPIC);
        print(new Json().put("check", "route").put("queues", route.getQueueDatas().get(0).getWriteQueueNums()).put("broker", route.getBrokerDatas().get(0).getBrokerName()));
        FirstCommit.of(admin, GROUP, TOPIC);
        producer = new DefaultMQProducer("java-producers");
        producer.setNamesrvAddr(nameServer);
        producer.setInstanceName("producer");
        producer.start();
        send();
        look();
        consume();
        delay();
        retry();
        filter();
        var stats = admin.examineConsumeStats(GROUP);
        print(new Json().put("check", "progress").put("diff", stats.computeTotalDiff()).put("queues", stats.getOffsetTable().size()));
        print(new Json().put("check", "brokers").put("count", admin.examineBrokerClusterInfo().getBrokerAddrTable().size()));
        producer.shutdown();
        admin.shutdown();
    }

    /** Every way of sending. */
    private void send() throws Exception {
        for (int i = 0; i < 6; i++) {
            told("sync", producer.send(message("sync-" + i, i % 2 == 0 ? "even" : "odd")));
        }
        MessageQueue second = new MessageQueue(TOPIC, "broker-a", 1);
        told("queue", producer.send(message("queue", "even"), second));
        told("selector", producer.send(message("selector", "even"), (queues, message, argument) -> queues.get((Integer) argument), 2));
        CompletableFuture<SendResult> later = new CompletableFuture<>();
        producer.send(message("async", "odd"), new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                later.complete(result);
            }

            @Override
            public void onException(Throwable failure) {
                later.completeExceptionally(failure);
            }
        });
        told("async", later.get(10, TimeUnit.SECONDS));
        producer.sendOneway(message("oneway", "odd"));
        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < 5; i++) {
            batch.add(message("batch-" + i, "even"));
        }
        told("batch", producer.send(batch));
        byte[] large = new byte[200_000];
        Message compressed = new Message(TOPIC, "even", "large", large);
        told("compressed", producer.send(compressed));
    }

    /** Bounds, a pull, and finding messages by id and by key. */
    private void look() throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("java-look");
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName("look");
        consumer.start();
        Thread.sleep(300);
        long total = 0;
        List<String> bodies = new ArrayList<>();
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(TOPIC)) {
            total += consumer.maxOffset(queue) - consumer.minOffset(queue);
            PullResult result = consumer.pull(queue, "*", consumer.minOffset(queue), 32);
            for (MessageExt message : result.getMsgFoundList()) {
                bodies.add(body(message));
            }
        }
        Collections.sort(bodies);
        print(new Json().put("check", "pull").put("total", total).put("bodies", String.join(",", bodies)));
        QueryResult found = byKey(consumer, "sync-3");
        MessageExt one = found.getMessageList().get(0);
        print(new Json().put("check", "query").put("count", found.getMessageList().size()).put("body", body(one)));
        MessageExt same = consumer.viewMessage(TOPIC, one.getMsgId());
        print(new Json().put("check", "view").put("body", body(same)).put("tag", same.getTags()).put("property", same.getUserProperty("color")));
        consumer.shutdown();
    }

    /** The messages of a key; a broker's index may be behind its log, and a client's query gives up silently. */
    private static QueryResult byKey(DefaultMQPullConsumer consumer, String key) throws Exception {
        for (int tries = 1; ; tries++) {
            try {
                return consumer.queryMessage(TOPIC, key, 10, 0, System.currentTimeMillis() + 60_000);
            } catch (MQClientException none) {
                if (none.getResponseCode() != NO_MESSAGE || tries == 20) {
                    throw none;
                }
                Thread.sleep(500);
            }
        }
    }

    /** A push consumer with a tag filter, from the first offset. */
    private void consume() throws Exception {
        List<String> bodies = Collections.synchronizedList(new ArrayList<>());
        CountDownLatch enough = new CountDownLatch(11);
        DefaultMQPushConsumer consumer = consumer(GROUP);
        consumer.subscribe(TOPIC, "even");
        consumer.registerMessageListener((org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                bodies.add(body(message));
                enough.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        boolean all = enough.await(30, TimeUnit.SECONDS);
        Thread.sleep(500);
        List<String> sorted = new ArrayList<>(bodies);
        Collections.sort(sorted);
        print(new Json().put("check", "consume").put("enough", all ? 1 : 0).put("bodies", String.join(",", sorted)));
        consumer.shutdown();
    }

    /** Delay level 1. */
    private void delay() throws Exception {
        long[] arrived = new long[1];
        CountDownLatch done = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = consumer("java-delay");
        consumer.subscribe("Delayed", "*");
        consumer.registerMessageListener((org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently) (messages, context) -> {
            arrived[0] = System.currentTimeMillis();
            done.countDown();
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        Message message = new Message("Delayed", "later".getBytes(StandardCharsets.UTF_8));
        message.setDelayTimeLevel(1);
        long sent = System.currentTimeMillis();
        producer.send(message);
        consumer.start();
        boolean came = done.await(30, TimeUnit.SECONDS);
        print(new Json().put("check", "delay").put("came", came ? 1 : 0).put("after_ms", arrived[0] - sent));
        consumer.shutdown();
    }

    /** A message that fails twice comes back, with its count; then it is done. */
    private void retry() throws Exception {
        List<Long> times = Collections.synchronizedList(new ArrayList<>());
        CountDownLatch done = new CountDownLatch(3);
        DefaultMQPushConsumer consumer = consumer("java-retry");
        consumer.subscribe("Retried", "*");
        consumer.registerMessageListener((org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently) (messages, context) -> {
            times.add((long) messages.get(0).getReconsumeTimes());
            context.setDelayLevelWhenNextConsume(1);
            done.countDown();
            return done.getCount() > 0 ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        producer.send(new Message("Retried", "again".getBytes(StandardCharsets.UTF_8)));
        consumer.start();
        boolean came = done.await(40, TimeUnit.SECONDS);
        print(new Json().put("check", "retry").put("came", came ? 1 : 0).put("times", times));
        consumer.shutdown();
    }

    /** A push consumer with an SQL92 filter, a pull with one, and a malformed one. */
    private void filter() throws Exception {
        for (int i = 0; i < 40; i++) {
            Message message = new Message("Filtered", ("f-" + i).getBytes(StandardCharsets.UTF_8));
            message.putUserProperty("amount", Integer.toString(i * 10));
            message.putUserProperty("region", i % 2 == 0 ? "eu" : "cn");
            producer.send(message);
        }
        List<String> bodies = Collections.synchronizedList(new ArrayList<>());
        CountDownLatch enough = new CountDownLatch(14);
        DefaultMQPushConsumer consumer = consumer("java-filter");
        consumer.subscribe("Filtered", MessageSelector.bySql("amount > 100 AND region IN ('eu', 'us')"));
        consumer.registerMessageListener((org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                bodies.add(body(message));
                enough.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        boolean all = enough.await(30, TimeUnit.SECONDS);
        Thread.sleep(500);
        List<String> sorted = new ArrayList<>(bodies);
        Collections.sort(sorted);
        print(new Json().put("check", "filter").put("enough", all ? 1 : 0).put("bodies", String.join(",", sorted)));
        consumer.shutdown();
        DefaultMQPullConsumer puller = new DefaultMQPullConsumer("java-filter-pull");
        puller.setNamesrvAddr(nameServer);
        puller.setInstanceName("filter-pull");
        puller.setRegisterTopics(java.util.Set.of("Filtered"));
        puller.start();
        Thread.sleep(5_000); // the first heartbeat tells the client its broker's version, without which it sends no filters
        List<String> statuses = new ArrayList<>();
        for (MessageQueue queue : puller.fetchSubscribeMessageQueues("Filtered")) {
            PullResult result = puller.pull(queue, MessageSelector.bySql("region = 'nowhere'"), 0, 32);
            statuses.add(result.getPullStatus() + " " + (result.getNextBeginOffset() == puller.maxOffset(queue) ? "end" : "" + result.getNextBeginOffset()));
        }
        Collections.sort(statuses);
        print(new Json().put("check", "filter-pull").put("statuses", String.join(",", statuses)));
        puller.shutdown();
        DefaultMQPushConsumer wrong = consumer("java-wrong");
        wrong.subscribe("Filtered", MessageSelector.bySql("amount > "));
        wrong.registerMessageListener(
            (org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently) (messages, context) -> ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
        try {
            wrong.start();
            print(new Json().put("check", "filter-wrong").put("code", 0));
        } catch (MQClientException refused) {
            print(new Json().put("check", "filter-wrong").put("code", refused.getResponseCode()));
        }
    }

    private DefaultMQPushConsumer consumer(String group) {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(group);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        return consumer;
    }

    private static Message message(String body, String tag) {
        Message message = new Message(TOPIC, tag, body, body.getBytes(StandardCharsets.UTF_8));
        message.putUserProperty("color", "gr\u00fcn");
        return message;
    }

    private static String body(MessageExt message) {
        return message.getBody().length > 100 ? "large:" + message.getBody().length : new String(message.getBody(), StandardCharsets.UTF_8);
    }

    private static void told(String how, SendResult result) {
        print(new Json().put("check", "send").put("how", how).put("status", result.getSendStatus().name()).put("id", result.getMsgId())
            .put("offset_id", result.getOffsetMsgId()).put("queue", result.getMessageQueue().getQueueId()).put("offset", result.getQueueOffset()));
    }

    private static void print(Json line) {
        System.out.println(line);
        System.out.flush();
    }
}
