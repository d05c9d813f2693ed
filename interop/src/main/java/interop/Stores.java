package interop;

import java.net.InetSocketAddress;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.FlushDiskType;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** Opens Apache RocketMQ's own message store on a directory, with the geometry that the test gives, and describes records. */
final class Stores {
    private Stores() {
    }

    /** Sizes of the files: bytes of a log file, entries of a consume queue file, slots and items of an index file, bytes of an extension file (0: none). */
    record Geometry(int segmentBytes, int queueEntries, int slots, int items, int extBytes) {
        static Geometry parse(String text) {
            String[] part = text.split(",");
            int extBytes = part.length > 4 ? Integer.parseInt(part[4]) : 0;
            return new Geometry(Integer.parseInt(part[0]), Integer.parseInt(part[1]), Integer.parseInt(part[2]), Integer.parseInt(part[3]), extBytes);
        }
    }

    static DefaultMessageStore open(Path directory, Geometry geometry, String flush) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(directory.toString());
        config.setStorePathCommitLog(directory.resolve("commitlog").toString());
        config.setMappedFileSizeCommitLog(geometry.segmentBytes());
        config.setMappedFileSizeConsumeQueue(geometry.queueEntries() * 20);
        config.setMaxHashSlotNum(geometry.slots());
        config.setMaxIndexNum(geometry.items());
        config.setFlushDiskType(FlushDiskType.valueOf(flush));
        if (geometry.extBytes() > 0) {
            config.setEnableConsumeQueueExt(true);
            config.setMappedFileSizeConsumeQueueExt(geometry.extBytes());
        }
        config.setHaListenPort(0);
        config.setDiskMaxUsedSpaceRatio(95);
        config.setFileReservedTime(24 * 365 * 100);
        DefaultMessageStore store = new DefaultMessageStore(
            config, new BrokerStatsManager("interop", true), (topic, queueId, offset, tags, time, bits, properties) -> { }, new BrokerConfig());
        if (!store.load()) {
            store.shutdown();
            throw new IllegalStateException("Apache RocketMQ refused to load " + directory);
        }
        store.start();
        return store;
    }

    /** Waits until everything in the log is in the consume queues and the index; an error after a minute. */
    static void awaitDispatch(DefaultMessageStore store) throws InterruptedException {
        for (int tries = 0; store.dispatchBehindBytes() > 0; tries++) {
            if (tries > 6000) {
                throw new IllegalStateException("dispatch is still " + store.dispatchBehindBytes() + " bytes behind");
            }
            Thread.sleep(10);
        }
    }

    /** One record as a line; {@code offset} is the place in the queue where it was found. */
    static Json describe(MessageExt message, long offset) throws Exception {
        Map<String, String> properties = new TreeMap<>(message.getProperties() == null ? Map.of() : message.getProperties());
        return new Json()
            .put("kind", "message")
            .put("topic", message.getTopic())
            .put("queue", message.getQueueId())
            .put("offset", offset)
            .put("own_offset", message.getQueueOffset())
            .put("log", message.getCommitLogOffset())
            .put("size", message.getStoreSize())
            .put("store_ms", message.getStoreTimestamp())
            .put("born_ms", message.getBornTimestamp())
            .put("born_host", host((InetSocketAddress) message.getBornHost()))
            .put("store_host", host((InetSocketAddress) message.getStoreHost()))
            .put("flag", message.getFlag())
            .put("sys_flag", message.getSysFlag())
            .put("reconsume_times", message.getReconsumeTimes())
            .put("prepared", message.getPreparedTransactionOffset())
            .put("crc", message.getBodyCRC())
            .put("body", hash(message.getBody()))
            .put("properties", properties);
    }

    static String hash(byte[] body) throws Exception {
        StringBuilder text = new StringBuilder();
        for (byte b : MessageDigest.getInstance("SHA-256").digest(body == null ? new byte[0] : body)) {
            text.append(String.format("%02x", b));
        }
        return text.toString();
    }

    private static String host(InetSocketAddress address) {
        return address.getAddress().getHostAddress() + ":" + address.getPort();
    }
}
