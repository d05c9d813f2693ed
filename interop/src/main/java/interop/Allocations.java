package interop;

import java.io.BufferedReader;
import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByConfig;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Divides queues with Apache RocketMQ's own strategies. Argument: a file with one case a line, fields separated by tabs:
 * strategy, own client id, queues ({@code topic/broker/id,...}), client ids ({@code id,...}), settings. One line out for each: the
 * indices of the queues in the list given, in the order of the answer; {@code !} and the exception's class where it raised.
 *
 * <p>Strategies: AVG, AVG_BY_CIRCLE, CONSISTENT_HASH (settings: points), CONFIG (indices), MACHINE_ROOM (rooms),
 * NEARBY-AVG, NEARBY-AVG_BY_CIRCLE (settings: {@code host=room,...}; a broker's room stands before its {@code @}).
 */
public final class Allocations {
    private Allocations() {
    }

    public static void main(String[] args) {
        Run.orHalt(() -> run(Path.of(args[0])));
    }

    private static void run(Path cases) throws Exception {
        StringBuilder told = new StringBuilder();
        try (BufferedReader lines = Files.newBufferedReader(cases, StandardCharsets.UTF_8)) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                told.append(answer(line.split("\t", -1))).append('\n');
            }
        }
        PrintWriter out = new PrintWriter(System.out, false, StandardCharsets.UTF_8);
        out.print(told);
        out.flush();
    }

    private static String answer(String[] fields) {
        List<MessageQueue> queues = new ArrayList<>();
        Map<MessageQueue, Integer> places = new HashMap<>();
        for (String text : list(fields[2])) {
            String[] parts = text.split("/");
            MessageQueue queue = new MessageQueue(parts[0], parts[1], Integer.parseInt(parts[2]));
            places.put(queue, queues.size());
            queues.add(queue);
        }
        try {
            List<MessageQueue> found = strategy(fields[0], fields[4], queues).allocate("g", fields[1], queues, list(fields[3]));
            StringBuilder line = new StringBuilder();
            for (MessageQueue queue : found) {
                line.append(line.length() == 0 ? "" : ",").append(places.get(queue));
            }
            return line.toString();
        } catch (RuntimeException refused) {
            return "!" + refused.getClass().getSimpleName();
        }
    }

    private static AllocateMessageQueueStrategy strategy(String name, String settings, List<MessageQueue> queues) {
        switch (name) {
            case "AVG":
                return new AllocateMessageQueueAveragely();
            case "AVG_BY_CIRCLE":
                return new AllocateMessageQueueAveragelyByCircle();
            case "CONSISTENT_HASH":
                return new AllocateMessageQueueConsistentHash(Integer.parseInt(settings));
            case "CONFIG":
                return configured(settings, queues);
            case "MACHINE_ROOM":
                AllocateMessageQueueByMachineRoom rooms = new AllocateMessageQueueByMachineRoom();
                Set<String> wanted = new HashSet<>(list(settings));
                rooms.setConsumeridcs(wanted);
                return rooms;
            case "NEARBY-AVG":
                return new AllocateMachineRoomNearby(new AllocateMessageQueueAveragely(), new Rooms(settings));
            case "NEARBY-AVG_BY_CIRCLE":
                return new AllocateMachineRoomNearby(new AllocateMessageQueueAveragelyByCircle(), new Rooms(settings));
            default:
                throw new IllegalStateException(name);
        }
    }

    private static AllocateMessageQueueStrategy configured(String settings, List<MessageQueue> queues) {
        List<MessageQueue> mine = new ArrayList<>();
        for (String index : list(settings)) {
            mine.add(queues.get(Integer.parseInt(index)));
        }
        AllocateMessageQueueByConfig config = new AllocateMessageQueueByConfig();
        config.setMessageQueueList(mine);
        return config;
    }

    private static List<String> list(String text) {
        return text.isEmpty() ? new ArrayList<>() : new ArrayList<>(List.of(text.split(",")));
    }

    private static final class Rooms implements AllocateMachineRoomNearby.MachineRoomResolver {
        private final Map<String, String> hosts = new HashMap<>();

        Rooms(String settings) {
            for (String pair : list(settings)) {
                hosts.put(pair.split("=")[0], pair.split("=")[1]);
            }
        }

        @Override
        public String brokerDeployIn(MessageQueue queue) {
            int mark = queue.getBrokerName().indexOf('@');
            return mark < 0 ? "" : queue.getBrokerName().substring(0, mark);
        }

        @Override
        public String consumerDeployIn(String clientId) {
            return hosts.getOrDefault(clientId.split("@")[0], "");
        }
    }
}
