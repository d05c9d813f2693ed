package interop;

import org.apache.rocketmq.client.exception.MQClientException;

/** How a program runs: what it throws ends its process at once, whatever threads it has running. */
final class Run {
    private Run() {
    }

    /** A program's work. */
    interface Work {
        void run() throws Exception;
    }

    /** The first request of a process that still warms up, to a server that does, too: the client itself waits three seconds for it. */
    static void patiently(Work work) throws Exception {
        for (int left = 5; ; left--) {
            try {
                work.run();
                return;
            } catch (MQClientException failure) {
                if (left == 0) {
                    throw failure;
                }
                Thread.sleep(300);
            }
        }
    }

    static void orHalt(Work work) {
        try {
            work.run();
            System.out.flush();
            System.exit(0);
        } catch (Throwable failure) {
            failure.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
    }
}
