//! A container's log as the node has it, by sections of what the script of a case tells.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::differential::place::Side;
use crate::differential::plain::Known;
use crate::files;

/// Begins the line that names a section.
const SECTION: &str = "== ";

/// The lines of the first run by sections; standard error is one of its own.
pub(super) fn read(side: &Side, pod: &Value, container: &str, known: &Known) -> Result<Value> {
    let text = |path: &str| pod.pointer(path).and_then(Value::as_str).unwrap_or_default();
    let [name, uid] = ["/metadata/name", "/metadata/uid"].map(text);
    let dir = PathBuf::from(side.logs).join(format!("{}_{name}_{uid}", side.namespace)).join(container);
    let mut logs = files::list_if_there(&dir)?;
    logs.sort();
    let Some(first) = logs.first() else { return Ok(json!({})) };
    let log = files::there(fs::read(first)).with_context(|| format!("read {}", first.display()))?;
    Ok(sections(&String::from_utf8_lossy(&log.unwrap_or_default()), known))
}

fn sections(log: &str, known: &Known) -> Value {
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut section = "begin".to_owned();
    // Of each stream: a part of a line may be followed by a line of the other.
    let mut parts: BTreeMap<&str, String> = BTreeMap::new();
    for line in log.lines() {
        let mut fields = line.splitn(4, ' ');
        let (_time, stream, tag) =
            (fields.next(), fields.next().unwrap_or("?"), fields.next().unwrap_or("?"));
        let part = parts.entry(stream).or_default();
        part.push_str(fields.next().unwrap_or_default());
        if tag == "P" {
            continue;
        }
        let whole = std::mem::take(part);
        if let Some(next) = whole.strip_prefix(SECTION) {
            next.clone_into(&mut section);
            all.entry(section.clone()).or_default();
            continue;
        }
        // What `date` says, as an example does every few seconds.
        if whole.contains(" UTC 20") {
            continue;
        }
        let of = if stream == "stderr" { "stderr" } else { &section };
        all.entry(of.to_owned()).or_default().push(known.plain_text(&whole));
    }
    // The end of a log that has none.
    for (stream, part) in parts.into_iter().filter(|(_, part)| !part.is_empty()) {
        all.entry(format!("{stream}, open")).or_default().push(known.plain_text(&part));
    }
    json!(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_log_says_by_sections() {
        let log = "T stdout F hello\nT stdout F == a\nT stdout P on\nT stderr F oops\nT stdout F e\nT stdout F two\nT stdout P th";
        let expected =
            json!({ "begin": ["hello"], "a": ["one", "two"], "stderr": ["oops"], "stdout, open": ["th"] });
        assert_eq!(sections(log, &Known::default()), expected);
    }
}
