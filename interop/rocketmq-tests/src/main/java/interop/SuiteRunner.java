package interop;

import com.alibaba.fastjson.JSON;
import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.MalformedURLException;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.junit.Ignore;
import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.Request;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

/**
 * Runs RocketMQ's integration tests, several classes at a time, and tells how each test ended, one
 * JSON object a line: {"class", "test", "outcome": "passed" | "failed" | "left out" | "listed",
 * "seconds", "message"}. A class that failed outside its tests has a line without "test".
 *
 * <p>Argument: how many threads; each takes the next class when it is done with one. With none the
 * tests are listed and do not run. Names of classes come on standard input, one a line. What the
 * tests print goes to standard error.
 */
public final class SuiteRunner {
    private static final String PASSED = "passed";
    private static final String FAILED = "failed";
    private static final String LEFT_OUT = "left out";
    private static final String LISTED = "listed";
    private final BufferedReader names =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    private final PrintStream out = System.out;

    private SuiteRunner() {
    }

    public static void main(String[] args) throws Exception {
        SuiteRunner runner = new SuiteRunner();
        System.setOut(System.err);
        int count = Integer.parseInt(args[0]);
        if (count == 0) {
            runner.list();
        } else {
            runner.run(count);
        }
        System.exit(0); // clients leave threads behind
    }

    private void list() throws Exception {
        for (String name = next(); name != null; name = next()) {
            Description all = Request.aClass(Class.forName(name)).getRunner().getDescription();
            for (Description test : all.getChildren()) {
                tell(test, test.getAnnotation(Ignore.class) == null ? LISTED : LEFT_OUT, 0, "");
            }
        }
    }

    private void run(int count) throws Exception {
        List<Thread> threads = new ArrayList<>();
        for (int index = 0; index < count; index++) {
            ClassLoader loader = new TestsOfThread();
            Thread thread = new Thread(() -> runClasses(loader), "suite-" + index);
            thread.setContextClassLoader(loader);
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
    }

    private void runClasses(ClassLoader loader) {
        for (String name = next(); name != null; name = next()) {
            JUnitCore core = new JUnitCore();
            core.addListener(new Teller());
            try {
                core.run(Class.forName(name, true, loader));
            } catch (Throwable broken) { // its static part failed; the next class may run
                Description all = Description.createSuiteDescription(name);
                tell(all, FAILED, 0, new Failure(all, broken).getTrimmedTrace());
            }
        }
    }

    private String next() {
        synchronized (names) {
            try {
                return names.readLine();
            } catch (IOException broken) {
                throw new IllegalStateException(broken);
            }
        }
    }

    private void tell(Description test, String outcome, long nanos, String message) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("class", test.getClassName());
        line.put("test", test.getMethodName());
        line.put("outcome", outcome);
        line.put("seconds", nanos / 1_000_000 / 1000.0);
        line.put("message", message);
        String text = JSON.toJSONString(line);
        synchronized (out) {
            out.println(text);
            out.flush();
        }
    }

    /**
     * RocketMQ's tests and their helpers have static state (clients to shut down, counters,
     * collectors of messages) that classes which run at the same time must not share. Each thread
     * loads them for itself; the client that they test is loaded once.
     */
    private static final class TestsOfThread extends URLClassLoader {
        private static final String TESTS = "org.apache.rocketmq.test.";

        TestsOfThread() throws MalformedURLException {
            super(classPath(), SuiteRunner.class.getClassLoader());
        }

        private static URL[] classPath() throws MalformedURLException {
            List<URL> found = new ArrayList<>();
            for (String path : System.getProperty("java.class.path").split(File.pathSeparator)) {
                found.add(new File(path).toURI().toURL());
            }
            return found.toArray(new URL[0]);
        }

        @Override
        protected Class<?> loadClass(String name, boolean resolve) throws ClassNotFoundException {
            if (!name.startsWith(TESTS)) {
                return super.loadClass(name, resolve);
            }
            synchronized (getClassLoadingLock(name)) {
                Class<?> loaded = findLoadedClass(name);
                return loaded != null ? loaded : findClass(name);
            }
        }
    }

    /** Of one class, whose tests run one after the other. */
    private final class Teller extends RunListener {
        private long begun;
        private String failure;

        @Override
        public void testStarted(Description test) {
            begun = System.nanoTime();
            failure = null;
        }

        @Override
        public void testFailure(Failure found) {
            if (found.getDescription().isTest()) {
                failure = found.getTrimmedTrace();
            } else {
                tell(found.getDescription(), FAILED, 0, found.getTrimmedTrace());
            }
        }

        @Override
        public void testAssumptionFailure(Failure found) {
            failure = "an assumption of the test does not hold: " + found.getTrimmedTrace();
        }

        @Override
        public void testIgnored(Description test) {
            tell(test, LEFT_OUT, 0, "");
        }

        @Override
        public void testFinished(Description test) {
            String outcome = failure == null ? PASSED : FAILED;
            tell(test, outcome, System.nanoTime() - begun, failure == null ? "" : failure);
        }
    }
}
