package interop;

/** Writes one flat JSON object after another, one a line. Strings are escaped; nothing is read. */
final class Json {
    private final StringBuilder text = new StringBuilder("{");

    Json put(String name, String value) {
        name(name);
        if (value == null) {
            text.append("null");
        } else {
            quote(value);
        }
        return this;
    }

    Json put(String name, long value) {
        name(name);
        text.append(value);
        return this;
    }

    Json put(String name, double value) {
        name(name);
        text.append(Math.round(value * 1000) / 1000.0);
        return this;
    }

    Json put(String name, java.util.Map<String, String> values) {
        name(name);
        text.append('{');
        boolean first = true;
        for (java.util.Map.Entry<String, String> entry : new java.util.TreeMap<>(values).entrySet()) {
            if (!first) {
                text.append(',');
            }
            first = false;
            quote(entry.getKey());
            text.append(':');
            quote(entry.getValue());
        }
        text.append('}');
        return this;
    }

    Json put(String name, java.util.List<Long> values) {
        name(name);
        text.append(values.toString());
        return this;
    }

    @Override
    public String toString() {
        return text + "}";
    }

    private void name(String name) {
        if (text.length() > 1) {
            text.append(',');
        }
        quote(name);
        text.append(':');
    }

    private void quote(String value) {
        text.append('"');
        for (char c : value.toCharArray()) {
            if (c == '"' || c == '\\') {
                text.append('\\').append(c);
            } else if (c < 0x20 || c > 0x7e) {
                text.append(String.format("\\u%04x", (int) c));
            } else {
                text.append(c);
            }
        }
        text.append('"');
    }
}
