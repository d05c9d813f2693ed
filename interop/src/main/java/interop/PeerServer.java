package interop;

import java.net.ServerSocket;
import java.nio.file.Path;
import java.util.concurrent.ThreadLocalRandom;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.store.config.FlushDiskType;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/**
 * A name server and a broker of Apache RocketMQ in one process, with its default settings; interop.segmentBytes is the length of a file of
 * the log where that is to be another one. Arguments: directory, flush type, and where wanted the broker's name and a further name server that it
 * registers with.
 * Prints the name server's address when both serve; goes on until it is ended, or for 30 minutes.
 */
public final class PeerServer {
    private PeerServer() {
    }

    public static void main(String[] args) {
        String name = args.length > 2 ? args[2] : "broker-a";
        String more = args.length > 3 ? ";" + args[3] : "";
        Run.orHalt(() -> serve(Path.of(args[0]), FlushDiskType.valueOf(args[1]), name, more));
    }

    private static void serve(Path directory, FlushDiskType flush, String name, String more) throws Exception {
        System.setProperty("user.home", directory.toString());
        System.setProperty(RemotingCommand.REMOTING_VERSION_KEY, Integer.toString(MQVersion.CURRENT_VERSION));
        String nameServer = "127.0.0.1:" + startNameServer(directory);
        startBroker(directory, flush, name, nameServer + more);
        System.out.println(nameServer);
        System.out.flush();
        Thread.sleep(30 * 60_000L);
        Runtime.getRuntime().halt(0);
    }

    private static int startNameServer(Path directory) throws Exception {
        NamesrvConfig config = new NamesrvConfig();
        config.setRocketmqHome(directory.toString());
        config.setKvConfigPath(directory.resolve("kvConfig.json").toString());
        NettyServerConfig netty = new NettyServerConfig();
        netty.setListenPort(freePorts());
        NamesrvController controller = new NamesrvController(config, netty);
        if (!controller.initialize()) {
            throw new IllegalStateException("the name server did not start");
        }
        controller.start();
        return netty.getListenPort();
    }

    private static void startBroker(Path directory, FlushDiskType flush, String name, String nameServers) throws Exception {
        BrokerConfig config = new BrokerConfig();
        config.setRocketmqHome(directory.toString());
        config.setBrokerName(name);
        config.setBrokerIP1("127.0.0.1");
        config.setBrokerIP2("127.0.0.1");
        config.setNamesrvAddr(nameServers);
        config.setEnablePropertyFilter(true);
        NettyServerConfig netty = new NettyServerConfig();
        netty.setListenPort(freePorts());
        MessageStoreConfig store = new MessageStoreConfig();
        store.setStorePathRootDir(directory.resolve("store").toString());
        store.setStorePathCommitLog(directory.resolve("store").resolve("commitlog").toString());
        store.setFlushDiskType(flush);
        store.setMappedFileSizeCommitLog(Integer.getInteger("interop.segmentBytes", store.getMappedFileSizeCommitLog()));
        store.setHaListenPort(0);
        BrokerController controller = new BrokerController(config, netty, new NettyClientConfig(), store);
        if (!controller.initialize()) {
            throw new IllegalStateException("the broker did not start");
        }
        controller.start();
        Runtime.getRuntime().addShutdownHook(new Thread(controller::shutdown));
    }

    /**
     * A port that is free together with the one two below it, which a broker takes for its second listener. It lies below those that
     * the system gives to whoever asks for any: one of them could be given away before the server binds it.
     */
    private static int freePorts() throws Exception {
        for (int tries = 0; tries < 100; tries++) {
            int port = ThreadLocalRandom.current().nextInt(10_000, 32_000);
            try (ServerSocket first = new ServerSocket(port); ServerSocket second = new ServerSocket(port - 2)) {
                return first.getLocalPort();
            } catch (java.io.IOException taken) {
                continue;
            }
        }
        throw new IllegalStateException("no free pair of ports");
    }
}
