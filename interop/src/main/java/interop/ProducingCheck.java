package interop;

import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * An unmodified Java client reads compressed bodies, asks and answers requests, and traces what it sends; it tells what it got as lines, the test judges.
 * Arguments: name server, how many messages of Zipped and AskJava to wait for.
 */
public final class ProducingCheck {
    private final String nameServer;
    private final CountDownLatch zipped;
    private final CountDownLatch asked;

    private ProducingCheck(String nameServer, int zipped, int asked) {
        this.nameServer = nameServer;
        this.zipped = new CountDownLatch(zipped);
        this.asked = new CountDownLatch(asked);
    }

    public static void main(String[] args) {
        Run.orHalt(() -> new ProducingCheck(args[0], Integer.parseInt(args[1]), Integer.parseInt(args[2])).check());
    }

    private void check() throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("java-askers", true);
        producer.setNamesrvAddr(nameServer);
        producer.start();
        DefaultMQPushConsumer reader = consumer("java-readers", "Zipped", (messages, context) -> {
            for (MessageExt message : messages) {
                byte[] body = message.getBody();
                print(new Json().put("check", "read").put("length", body.length).put("crc", UtilAll.crc32(body)));
                zipped.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        DefaultMQPushConsumer server = consumer("java-servers", "AskJava", (messages, context) -> {
            for (MessageExt message : messages) {
                try {
                    String body = new StringBuilder(new String(message.getBody(), StandardCharsets.UTF_8)).reverse().toString();
                    producer.send(MessageUtil.createReplyMessage(message, body.getBytes(StandardCharsets.UTF_8)), 5_000L);
                } catch (Exception error) {
                    print(new Json().put("check", "error").put("text", error.toString()));
                }
                asked.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        byte[] body = "a body that is worth it ".repeat(500).getBytes(StandardCharsets.UTF_8);
        SendResult sent = producer.send(new Message("ZippedByJava", "tag", "java-key", body));
        print(new Json().put("check", "sent").put("id", sent.getMsgId()).put("length", body.length).put("crc", UtilAll.crc32(body)));
        Message reply = producer.request(new Message("AskPython", "ping".getBytes(StandardCharsets.UTF_8)), 30_000L);
        print(new Json().put("check", "reply").put("body", new String(reply.getBody(), StandardCharsets.UTF_8)));
        boolean all = zipped.await(60, TimeUnit.SECONDS) & asked.await(60, TimeUnit.SECONDS);
        print(new Json().put("check", "end").put("all", String.valueOf(all)));
        Thread.sleep(1_000); // traces leave, replies arrive
        server.shutdown();
        reader.shutdown();
        producer.shutdown();
    }

    private DefaultMQPushConsumer consumer(String group, String topic, MessageListenerConcurrently listener) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(listener);
        consumer.start();
        return consumer;
    }

    private static synchronized void print(Json line) {
        System.out.println(line);
    }
}
