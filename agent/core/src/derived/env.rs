//! `$(NAME)` in environment, command, arguments and `subPathExpr`.
//!
//! Source: `third_party/forked/golang/expansion/expand.go`, `pkg/kubelet/container/helpers.go`.

use std::collections::BTreeMap;

/// Replaces every `$(NAME)` by what `lookup` gives for `NAME`. `$$` stands for `$`; a reference that is not closed stays
/// as it is. One pass: what comes in by a reference is not looked at again.
pub fn expand(input: &str, mut lookup: impl FnMut(&str) -> String) -> String {
    let mut output = String::with_capacity(input.len());
    let mut rest = input;
    while let Some(at) = rest.find('$') {
        output.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        rest = if let Some(after) = after.strip_prefix('$') {
            output.push('$');
            after
        } else if let Some((name, after)) = after.strip_prefix('(').and_then(|open| open.split_once(')')) {
            output.push_str(&lookup(name));
            after
        } else {
            output.push('$');
            after
        };
    }
    output.push_str(rest);
    output
}

/// As [`expand`] from known variables; a reference to another name stays as it is.
#[must_use]
pub fn expand_known(input: &str, known: &BTreeMap<String, String>) -> String {
    expand(input, |name| known.get(name).cloned().unwrap_or_else(|| format!("$({name})")))
}

/// As [`expand`] for a path within a volume, where every variable must be there and not be empty.
///
/// # Errors
///
/// The names that are missing, sorted, each once.
pub fn expand_path(input: &str, known: &BTreeMap<String, String>) -> Result<String, Vec<String>> {
    let mut missing = std::collections::BTreeSet::new();
    let expanded = expand(input, |name| match known.get(name) {
        Some(value) if !value.is_empty() => value.clone(),
        Some(_) | None => {
            missing.insert(name.to_owned());
            String::new()
        }
    });
    if missing.is_empty() { Ok(expanded) } else { Err(missing.into_iter().collect()) }
}

#[cfg(test)]
mod tests;
