package interop;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HexFormat;
import org.apache.rocketmq.filter.util.BitsArray;
import org.apache.rocketmq.filter.util.BloomFilter;
import org.apache.rocketmq.store.ConsumeQueue;
import org.apache.rocketmq.store.ConsumeQueueExt;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.SelectMappedBufferResult;

/**
 * Extension units of consume queues, and the bloom filter of their bit maps, by Apache RocketMQ's own classes.
 *
 * <p>put ROOT FILE_BYTES FILE: puts the units of FILE ({"code", "store_ms", "bit_map" in hex}, one a line) into ROOT/T/0, prints their addresses.
 * get ROOT FILE_BYTES ADDRESSES: prints the units at those addresses (comma separated), after a recovery. store DIRECTORY GEOMETRY TOPIC: the units of
 * queue 0 of a topic, through the store. bloom FILE: bit positions of each key in FILE, one a line, then the bit map of all of them.
 */
public final class ExtUnits {
    private static final int BIT_MAP_LENGTH = 64;

    private ExtUnits() {
    }

    public static void main(String[] args) {
        Run.orHalt(() -> {
            switch (args[0]) {
                case "put" -> put(args[1], Integer.parseInt(args[2]), Path.of(args[3]));
                case "get" -> get(args[1], Integer.parseInt(args[2]), args[3]);
                case "store" -> store(Path.of(args[1]), args[2], args[3]);
                case "bloom" -> bloom(Path.of(args[1]));
                default -> throw new IllegalArgumentException(args[0]);
            }
        });
    }

    private static void put(String root, int fileBytes, Path file) throws Exception {
        ConsumeQueueExt ext = new ConsumeQueueExt("T", 0, root, fileBytes, BIT_MAP_LENGTH);
        ext.load();
        ext.recover();
        for (String line : Files.readAllLines(file, StandardCharsets.UTF_8)) {
            JSONObject unit = JSON.parseObject(line);
            byte[] bitMap = unit.getString("bit_map").isEmpty() ? null : HexFormat.of().parseHex(unit.getString("bit_map"));
            System.out.println(ext.put(new ConsumeQueueExt.CqExtUnit(unit.getLong("code"), unit.getLong("store_ms"), bitMap)));
        }
        ext.flush(0);
    }

    private static void get(String root, int fileBytes, String addresses) {
        ConsumeQueueExt ext = new ConsumeQueueExt("T", 0, root, fileBytes, BIT_MAP_LENGTH);
        ext.load();
        ext.recover();
        for (String address : addresses.split(",")) {
            ConsumeQueueExt.CqExtUnit unit = new ConsumeQueueExt.CqExtUnit();
            System.out.println(ext.get(Long.parseLong(address), unit) ? describe(unit) : "none");
        }
    }

    private static void store(Path directory, String geometry, String topic) throws Exception {
        DefaultMessageStore store = Stores.open(directory, Stores.Geometry.parse(geometry), "ASYNC_FLUSH");
        Stores.awaitDispatch(store);
        ConsumeQueue queue = store.getConsumeQueue(topic, 0);
        for (long offset = queue.getMinOffsetInQueue(); offset < queue.getMaxOffsetInQueue(); offset++) {
            SelectMappedBufferResult entry = queue.getIndexBuffer(offset);
            long code = entry.getByteBuffer().getLong(12);
            entry.release();
            System.out.println(queue.isExtAddr(code) ? describe(queue.getExt(code)) : "plain " + code);
        }
        store.shutdown();
    }

    private static void bloom(Path file) throws Exception {
        BloomFilter filter = BloomFilter.createByFn(20, 32);
        BitsArray bits = BitsArray.create(filter.getM());
        for (String key : Files.readAllLines(file, StandardCharsets.UTF_8)) {
            System.out.println(Arrays.toString(filter.calcBitPositions(key)));
            filter.hashTo(key, bits);
        }
        System.out.println(HexFormat.of().formatHex(bits.bytes()));
    }

    private static String describe(ConsumeQueueExt.CqExtUnit unit) {
        byte[] bitMap = unit.getFilterBitMap();
        return unit.getTagsCode() + " " + unit.getMsgStoreTime() + " " + (bitMap == null ? "" : HexFormat.of().formatHex(bitMap));
    }
}
