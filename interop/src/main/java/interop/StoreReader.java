package interop;

import java.io.BufferedWriter;
import java.io.OutputStreamWriter;
import java.io.PrintWriter;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.GetMessageStatus;
import org.apache.rocketmq.store.QueryMessageResult;

/**
 * Opens a store with Apache RocketMQ's own code and tells everything in it as lines: every message of every queue, bounds,
 * look-ups by time, and a query for each key and unique key that a message carries. Arguments: directory, geometry.
 */
public final class StoreReader {
    private final DefaultMessageStore store;
    private final PrintWriter out;
    private final Map<String, Set<String>> keys = new TreeMap<>();

    private StoreReader(DefaultMessageStore store, PrintWriter out) {
        this.store = store;
        this.out = out;
    }

    public static void main(String[] args) {
        Run.orHalt(() -> read(args));
    }

    private static void read(String[] args) throws Exception {
        DefaultMessageStore store = Stores.open(Path.of(args[0]), Stores.Geometry.parse(args[1]), "ASYNC_FLUSH");
        Stores.awaitDispatch(store);
        try (PrintWriter out = new PrintWriter(new BufferedWriter(new OutputStreamWriter(System.out, StandardCharsets.UTF_8)))) {
            StoreReader reader = new StoreReader(store, out);
            out.println(new Json().put("kind", "log").put("min", store.getMinPhyOffset()).put("max", store.getMaxPhyOffset()));
            for (String topic : new TreeSet<>(store.getConsumeQueueTable().keySet())) {
                for (int queueId : new TreeSet<>(store.getConsumeQueueTable().get(topic).keySet())) {
                    reader.queue(topic, queueId);
                }
            }
            reader.keys.forEach((topic, carried) -> carried.forEach(key -> reader.key(topic, key)));
        }
        store.shutdown();
    }

    private void queue(String topic, int queueId) throws Exception {
        long min = store.getMinOffsetInQueue(topic, queueId);
        long max = store.getMaxOffsetInQueue(topic, queueId);
        out.println(new Json().put("kind", "bounds").put("topic", topic).put("queue", queueId).put("min", min).put("max", max));
        List<Long> times = new ArrayList<>();
        for (long offset = min; offset < max; ) {
            GetMessageResult result = store.getMessage("interop", topic, queueId, offset, 32, null);
            if (result.getStatus() != GetMessageStatus.FOUND) {
                throw new IllegalStateException(topic + " " + queueId + " at " + offset + ": " + result.getStatus());
            }
            for (ByteBuffer buffer : result.getMessageBufferList()) {
                MessageExt message = MessageDecoder.decode(buffer, true, false);
                times.add(message.getStoreTimestamp());
                note(topic, message);
                out.println(Stores.describe(message, offset++));
            }
            result.release();
        }
        byTime(topic, queueId, times);
    }

    private void note(String topic, MessageExt message) {
        Set<String> carried = keys.computeIfAbsent(topic, unknown -> new TreeSet<>());
        for (String name : List.of(MessageConst.PROPERTY_KEYS, MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX)) {
            String value = message.getProperty(name);
            if (value != null) {
                carried.addAll(Arrays.asList(name.equals(MessageConst.PROPERTY_KEYS) ? value.split(" ") : new String[] {value}));
            }
        }
        carried.remove("");
    }

    private void byTime(String topic, int queueId, List<Long> times) {
        if (times.isEmpty()) {
            return;
        }
        for (long time : new TreeSet<>(List.of(times.get(0) - 1, times.get(0), times.get(times.size() / 2), times.get(times.size() - 1)))) {
            long offset = store.getOffsetInQueueByTime(topic, queueId, time);
            out.println(new Json().put("kind", "time").put("topic", topic).put("queue", queueId).put("ms", time).put("offset", offset));
        }
    }

    private void key(String topic, String key) {
        List<Long> found = new ArrayList<>();
        QueryMessageResult result = store.queryMessage(topic, key, 64, 0, Long.MAX_VALUE);
        for (ByteBuffer buffer : result.getMessageBufferList()) {
            found.add(MessageDecoder.decode(buffer, false, false).getCommitLogOffset());
        }
        result.release();
        Collections.sort(found);
        out.println(new Json().put("kind", "key").put("topic", topic).put("key", key).put("found", found));
    }
}
