package interop;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.common.filter.ExpressionType;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.Expression;

/**
 * Verdicts of Apache RocketMQ's own SQL92 filter.
 *
 * <p>FilterCheck FILE: each line is {"expression": text, "properties": [property string, ...]}; prints a line for each: "refused", or one letter per
 * property string: t, f, n (unknown), e (the evaluation failed).
 */
public final class FilterCheck {
    private FilterCheck() {
    }

    public static void main(String[] arguments) throws IOException {
        StringBuilder out = new StringBuilder();
        for (String line : Files.readAllLines(Path.of(arguments[0]), StandardCharsets.UTF_8)) {
            JSONObject asked = JSON.parseObject(line);
            out.append(verdicts(asked.getString("expression"), asked.getJSONArray("properties"))).append('\n');
        }
        System.out.print(out);
        System.out.flush();
    }

    private static String verdicts(String text, JSONArray properties) {
        Expression compiled;
        try {
            compiled = FilterFactory.INSTANCE.get(ExpressionType.SQL92).compile(text);
        } catch (Throwable refused) {
            return "refused";
        }
        StringBuilder found = new StringBuilder();
        for (int i = 0; i < properties.size(); i++) {
            found.append(verdict(compiled, MessageDecoder.string2messageProperties(properties.getString(i))));
        }
        return found.toString();
    }

    private static char verdict(Expression compiled, Map<String, String> properties) {
        try {
            Object value = compiled.evaluate(new MessageEvaluationContext(properties));
            return value == null ? 'n' : Boolean.TRUE.equals(value) ? 't' : Boolean.FALSE.equals(value) ? 'f' : '?';
        } catch (Throwable failed) {
            return 'e';
        }
    }
}
