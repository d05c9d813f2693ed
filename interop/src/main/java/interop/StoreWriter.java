package interop;

import java.net.InetSocketAddress;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import org.apache.rocketmq.common.TopicFilterType;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.store.AppendMessageResult;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageExtBrokerInner;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.PutMessageStatus;

/**
 * Writes messages of every kind with Apache RocketMQ's own store and tells each acknowledgement as a line.
 * Arguments: directory, geometry, flush type, number of messages, seed, and how it ends: {@code clean} shuts the store down;
 * {@code hang} says {@code {"kind":"ready"}} and waits to be killed.
 */
public final class StoreWriter {
    static final String[] TOPICS = {"InteropA", "InteropB", "Interop-long_name-%RETRY%-of-the-third-topic-with-many-characters"};
    static final String[] TAGS = {"TagA", "TagB", "\u6a19\u7c64", null};
    static final int QUEUES = 4;

    private final DefaultMessageStore store;
    private final Random random;

    private StoreWriter(DefaultMessageStore store, long seed) {
        this.store = store;
        this.random = new Random(seed);
    }

    public static void main(String[] args) {
        Run.orHalt(() -> write(args));
    }

    private static void write(String[] args) throws Exception {
        Path directory = Path.of(args[0]);
        DefaultMessageStore store = Stores.open(directory, Stores.Geometry.parse(args[1]), args[2]);
        StoreWriter writer = new StoreWriter(store, Long.parseLong(args[4]));
        int count = Integer.parseInt(args[3]);
        for (int number = 0; number < count; number++) {
            writer.write(number);
        }
        System.out.println(new Json().put("kind", "ready"));
        System.out.flush();
        if (args[5].equals("hang")) {
            Thread.sleep(120_000);
            Runtime.getRuntime().halt(3);
        }
        Stores.awaitDispatch(store);
        store.shutdown();
    }

    private void write(int number) throws Exception {
        if (number % 11 == 10) {
            acknowledged(store.putMessages(batch(number)));
            return;
        }
        MessageExtBrokerInner message = single(number);
        if (number % 37 == 36) {
            message.setDelayTimeLevel(18);
        }
        if (number % 41 == 40) {
            message.setSysFlag(message.getSysFlag() | MessageSysFlag.TRANSACTION_PREPARED_TYPE);
            MessageAccessor.putProperty(message, MessageConst.PROPERTY_TRANSACTION_PREPARED, "true");
        }
        if (number % 43 == 42) {
            message.setBornHost(new InetSocketAddress("::1", 40_000));
            message.setBornHostV6Flag();
        }
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        acknowledged(store.putMessage(message));
    }

    private MessageExtBrokerInner single(int number) {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        fill(message, number);
        message.setQueueId(random.nextInt(QUEUES));
        message.setFlag(number);
        message.setBornTimestamp(System.currentTimeMillis() - random.nextInt(100));
        message.setBornHost(new InetSocketAddress("127.0.0.1", 40_000));
        message.setStoreHost(new InetSocketAddress("127.0.0.1", 10_911));
        message.setReconsumeTimes(number % 17 == 0 ? 3 : 0);
        message.setTagsCode(MessageExtBrokerInner.tagsString2tagsCode(TopicFilterType.SINGLE_TAG, message.getTags()));
        return message;
    }

    private void fill(Message message, int number) {
        message.setTopic(TOPICS[number % TOPICS.length]);
        byte[] body = new byte[1 + (number % 29 == 0 ? 20_000 : random.nextInt(300))];
        random.nextBytes(body);
        message.setBody(body);
        if (number % 3 != 0) {
            message.setKeys(number % 5 == 0 ? "order-" + number + " both-" + number % 31 : "order-" + number);
        }
        String tag = TAGS[random.nextInt(TAGS.length)];
        if (tag != null) {
            message.setTags(tag);
        }
        if (number % 2 == 0) {
            message.putUserProperty("number", Integer.toString(number));
            message.putUserProperty("\u00fcber", "gr\u00f6\u00dfe \u6a19");
        }
        if (number % 13 != 0) {
            MessageClientIDSetter.setUniqID(message);
        }
    }

    private MessageExtBatch batch(int number) {
        List<Message> messages = new ArrayList<>();
        for (int i = 0; i < 5; i++) {
            Message message = new Message();
            fill(message, number * 1000 + i);
            message.setTopic(TOPICS[0]);
            messages.add(message);
        }
        MessageExtBatch batch = new MessageExtBatch();
        batch.setTopic(TOPICS[0]);
        batch.setQueueId(number % QUEUES);
        batch.setBody(MessageDecoder.encodeMessages(messages));
        batch.setBornTimestamp(System.currentTimeMillis());
        batch.setBornHost(new InetSocketAddress("127.0.0.1", 40_001));
        batch.setStoreHost(new InetSocketAddress("127.0.0.1", 10_911));
        return batch;
    }

    private static void acknowledged(PutMessageResult result) {
        if (result.getPutMessageStatus() != PutMessageStatus.PUT_OK) {
            throw new IllegalStateException("put answered " + result);
        }
        AppendMessageResult appended = result.getAppendMessageResult();
        System.out.println(new Json()
            .put("kind", "ack")
            .put("log", appended.getWroteOffset())
            .put("bytes", appended.getWroteBytes())
            .put("offset", appended.getLogicsOffset())
            .put("store_ms", appended.getStoreTimestamp())
            .put("ids", appended.getMsgId()));
    }
}
