//! Takes from what was seen of a pod what no two pods have in common: ids, addresses, moments, and where its node has its files.

use serde_json::{Value, json};

/// Fields of a status that are moments.
const MOMENTS: [&str; 6] =
    ["startTime", "startedAt", "finishedAt", "lastTransitionTime", "lastProbeTime", "creationTimestamp"];
/// Digits of an id of containerd.
const ID_DIGITS: usize = 64;
/// Digits of the name of the file that a container writes its last message to.
const MESSAGE_DIGITS: usize = 8;

/// What is known of a pod on its node, and what stands for it.
#[derive(Debug, Clone, Default)]
pub struct Known {
    /// Wherever it occurs.
    texts: Vec<(String, &'static str)>,
    /// As a whole word.
    words: Vec<(String, &'static str)>,
}

impl Known {
    /// Adds a text for which another stands, which is looked for before those that are added later.
    #[must_use]
    pub fn text(mut self, text: &str, by: &'static str) -> Self {
        if !text.is_empty() {
            self.texts.push((text.to_owned(), by));
        }
        self
    }

    /// Adds a word for which another stands.
    #[must_use]
    pub fn word(mut self, word: &str, by: &'static str) -> Self {
        if !word.is_empty() {
            self.words.push((word.to_owned(), by));
        }
        self
    }

    /// The same value for every pod.
    #[must_use]
    pub fn plain(&self, value: &Value) -> Value {
        match value {
            Value::Object(map) => {
                let entry = |(key, value): (&String, &Value)| {
                    let is_moment = MOMENTS.contains(&key.as_str()) && value.is_string();
                    (self.plain_text(key), if is_moment { json!("TIME") } else { self.plain(value) })
                };
                Value::Object(map.iter().map(entry).collect())
            }
            Value::Array(all) => Value::Array(all.iter().map(|one| self.plain(one)).collect()),
            Value::String(text) => json!(self.plain_text(text)),
            Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
        }
    }

    /// The same text for every pod.
    #[must_use]
    pub fn plain_text(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (known, by) in &self.texts {
            if text.contains(known.as_str()) {
                text = text.replace(known.as_str(), by);
            }
        }
        let mut plain = String::with_capacity(text.len());
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let end = rest.find(|c| !is_of_word(c)).unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            // Numbers of snapshots, and the file of a message.
            let is_number = plain.ends_with("/snapshots/") && word.bytes().all(|byte| byte.is_ascii_digit());
            let is_message = word.len() == MESSAGE_DIGITS
                && plain.contains("/UID/containers/")
                && word.bytes().all(|byte| byte.is_ascii_hexdigit());
            if is_number || is_message {
                plain.push('N');
            } else {
                plain.push_str(&self.plain_word(word));
            }
            let next = after.find(is_of_word).unwrap_or(after.len());
            plain.push_str(&after[..next]);
            rest = &after[next..];
        }
        plain
    }

    fn plain_word(&self, word: &str) -> String {
        let bare = word.trim_end_matches(['.', ':']);
        let end = &word[bare.len()..];
        if let Some((_, by)) = self.words.iter().find(|(known, _)| known == bare) {
            return format!("{by}{end}");
        }
        // An address with a port.
        if let Some((host, port)) = bare.rsplit_once(':')
            && let Some((_, by)) = self.words.iter().find(|(known, _)| known == host)
        {
            return format!("{by}:{port}{end}");
        }
        if let Some(by) = varying(bare) {
            return format!("{by}{end}");
        }
        // An id behind a name, as of a scope.
        if let Some((before, id)) = bare.rsplit_once('-')
            && is_id(id)
        {
            return format!("{before}-ID{end}");
        }
        word.to_owned()
    }
}

fn is_of_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_.:+-".contains(c)
}

/// What stands for a word that differs from pod to pod.
fn varying(word: &str) -> Option<&'static str> {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_id(word) {
        return Some("ID");
    }
    // What is shown of a token may be its beginning.
    if word.starts_with("eyJ") && word.contains('.') {
        return Some("TOKEN");
    }
    if word.strip_prefix("..").is_some_and(|rest| rest.get(..4).is_some_and(digits)) {
        return Some("..DATA");
    }
    if word.get(..4).is_some_and(digits) && word.get(4..5) == Some("-") && word.contains('T') {
        return Some("TIME");
    }
    is_measured(word).then_some("TOOK")
}

fn is_id(word: &str) -> bool {
    word.len() == ID_DIGITS && word.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether it is a time that was measured: those that somebody has chosen are whole seconds.
fn is_measured(word: &str) -> bool {
    let Some(number) = word.strip_suffix("ms").or(word.strip_suffix("µ").or(word.strip_suffix('s'))) else {
        return false;
    };
    let number = number.rsplit_once('m').map_or(number, |(_minutes, seconds)| seconds);
    number.parse::<f64>().is_ok() && (word.ends_with("ms") || number.contains('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_varies_has_a_name() {
        let id = "0a".repeat(32);
        let known = Known::default()
            .text("/var/lib/theirs", "ROOT")
            .text("1234-56", "UID")
            .word("lab", "NODE")
            .word("10.0.0.7", "IP");
        for (text, expected) in [
            ("on lab: labels", "on NODE: labels".to_owned()),
            ("dial tcp 10.0.0.7:80: refused", "dial tcp IP:80: refused".to_owned()),
            ("/var/lib/theirs/pods/1234-56/x", "ROOT/pods/UID/x".to_owned()),
            (&format!("containerd://{id}"), "containerd://ID".to_owned()),
            (&format!("cri-containerd-{id}"), "cri-containerd-ID".to_owned()),
            (
                "pulled in 12.5ms (1m2.25s including waiting).",
                "pulled in TOOK (TOOK including waiting).".to_owned(),
            ),
            ("back-off 10s restarting", "back-off 10s restarting".to_owned()),
            ("..2026_11_27_15_00_00.123/a", "..DATA/a".to_owned()),
            ("at 2026-11-27T15:00:00Z.", "at TIME.".to_owned()),
        ] {
            assert_eq!(known.plain_text(text), expected, "{text}");
        }
    }
}
