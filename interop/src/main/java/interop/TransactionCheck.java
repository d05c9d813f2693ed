package interop;

import java.nio.charset.StandardCharsets;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentSkipListSet;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * An unmodified transactional producer: a commit, a roll-back, one left open and answered for at the check, and one that another client of its group left behind.
 * Arguments: name server.
 */
public final class TransactionCheck {
    private static final String TOPIC = "Transactions";
    private static final String GROUP = "java-transactions";
    private static final long WAIT_MS = 30_000;

    private final String nameServer;
    private final ConcurrentSkipListSet<String> checked = new ConcurrentSkipListSet<>();
    private final ConcurrentSkipListSet<String> consumed = new ConcurrentSkipListSet<>();

    private TransactionCheck(String nameServer) {
        this.nameServer = nameServer;
    }

    public static void main(String[] args) {
        Run.orHalt(() -> new TransactionCheck(args[0]).check());
    }

    private void check() throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(GROUP);
        producer.setNamesrvAddr(nameServer);
        producer.setInstanceName("producer");
        producer.setHeartbeatBrokerInterval(1_000);
        producer.setTransactionListener(new Listener());
        producer.start();
        for (String body : new String[] {"commit", "rollback", "open"}) {
            Message message = new Message(TOPIC, "tag", body, body.getBytes(StandardCharsets.UTF_8));
            TransactionSendResult result = producer.sendMessageInTransaction(message, body);
            print(new Json().put("check", "send").put("body", body).put("status", result.getSendStatus().name()).put("state", result.getLocalTransactionState().name())
                .put("same", result.getTransactionId().equals(result.getMsgId()) ? 1 : 0));
        }
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("java-transactions-readers");
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName("consumer");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(TOPIC, "tag");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                consumed.add(text(message) + " " + message.getKeys());
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        long end = System.currentTimeMillis() + WAIT_MS;
        while (consumed.size() < 3 && System.currentTimeMillis() < end) {
            Thread.sleep(50);
        }
        Thread.sleep(1_000);
        print(new Json().put("check", "consumed").put("bodies", String.join(",", new TreeSet<>(consumed))));
        print(new Json().put("check", "asked").put("bodies", String.join(",", new TreeSet<>(checked))));
        consumer.shutdown();
        producer.shutdown();
    }

    private final class Listener implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            switch ((String) argument) {
                case "commit":
                    return LocalTransactionState.COMMIT_MESSAGE;
                case "rollback":
                    return LocalTransactionState.ROLLBACK_MESSAGE;
                default:
                    return LocalTransactionState.UNKNOW;
            }
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            checked.add(text(message) + " " + message.getTopic());
            return LocalTransactionState.COMMIT_MESSAGE;
        }
    }

    private static String text(MessageExt message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    private static void print(Json json) {
        System.out.println(json);
    }
}
