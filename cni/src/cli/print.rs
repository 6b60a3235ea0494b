//! Showing an answer.

use serde_json::Value;

use super::options::Output;
use super::run::Answer;

/// JSON as it is, or one line per leaf, `path: value`.
pub(crate) fn print(answer: &Answer, output: Output) -> String {
    match output {
        Output::Json => format!("{:#}", answer.value),
        Output::Text => {
            let mut lines = Vec::new();
            leaves("", &answer.value, &mut lines);
            lines.join("\n")
        }
    }
}

fn leaves(path: &str, value: &Value, lines: &mut Vec<String>) {
    let below =
        |key: &dyn std::fmt::Display| if path.is_empty() { key.to_string() } else { format!("{path}.{key}") };
    match value {
        Value::Object(object) if !object.is_empty() => {
            for (key, value) in object {
                leaves(&below(key), value, lines);
            }
        }
        Value::Array(items) if items.iter().any(|item| item.is_object() || item.is_array()) => {
            for (index, item) in items.iter().enumerate() {
                leaves(&below(&index), item, lines);
            }
        }
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(plain).collect();
            lines.push(format!("{path}: {}", items.join(" ")));
        }
        leaf => lines.push(format!("{path}: {}", plain(leaf))),
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn text_is_one_line_per_leaf() {
        let value = json!({"ips": [{"address": "10.0.0.2/24", "interface": 0}], "plugins": ["a", "b"], "ready": true});
        let text = print(&Answer { value, ok: true }, Output::Text);
        assert_eq!(text, "ips.0.address: 10.0.0.2/24\nips.0.interface: 0\nplugins: a b\nready: true");
    }
}
