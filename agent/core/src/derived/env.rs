//! `$(NAME)` in environment, command, arguments and `subPathExpr`.
//!
//! Source: `third_party/forked/golang/expansion/expand.go`, `pkg/kubelet/container/helpers.go`.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

/// Most bytes that the texts of a container come to, all together: twice what the kernel lets a program begin with (execve(2)) under
/// the usual limit of its stack. References to what has references double with each line of a pod.
pub const EXPANDED_BYTES_MAX: usize = 4 << 20;

/// The texts of a container come to more than that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "with values in place of references, variables and command come to more than {EXPANDED_BYTES_MAX} bytes"
)]
pub struct TooLong;

/// How many bytes more the texts of a container may come to.
#[derive(Debug)]
pub struct Budget {
    left: usize,
}

impl Budget {
    /// Of a container of which nothing was expanded yet.
    #[must_use]
    pub fn whole() -> Self {
        Self { left: EXPANDED_BYTES_MAX }
    }

    /// Counts a text.
    ///
    /// # Errors
    ///
    /// When that is too much.
    pub fn count(&mut self, text: String) -> Result<String, TooLong> {
        self.take(text.len())?;
        Ok(text)
    }

    fn push(&mut self, output: &mut String, text: &str) -> Result<(), TooLong> {
        self.take(text.len())?;
        output.push_str(text);
        Ok(())
    }

    fn take(&mut self, bytes: usize) -> Result<(), TooLong> {
        self.left = self.left.checked_sub(bytes).ok_or(TooLong)?;
        Ok(())
    }
}

/// Replaces every `$(NAME)` by what `lookup` gives for `NAME`. `$$` stands for `$`; a reference that is not closed stays
/// as it is. One pass: what comes in by a reference is not looked at again.
///
/// # Errors
///
/// When the budget does not suffice.
pub fn expand(
    input: &str,
    budget: &mut Budget,
    mut lookup: impl FnMut(&str) -> String,
) -> Result<String, TooLong> {
    let mut output = String::with_capacity(input.len());
    let mut rest = input;
    // Behind the last `)` nothing is closed, and nobody looks for it again and again.
    let unclosed = input.rsplit(')').next().map_or(0, str::len);
    while let Some(at) = rest.find('$') {
        budget.push(&mut output, &rest[..at])?;
        let after = &rest[at + 1..];
        let open = after.strip_prefix('(').filter(|open| open.len() > unclosed);
        rest = if let Some(after) = after.strip_prefix('$') {
            budget.push(&mut output, "$")?;
            after
        } else if let Some((name, after)) = open.and_then(|open| open.split_once(')')) {
            budget.push(&mut output, &lookup(name))?;
            after
        } else {
            budget.push(&mut output, "$")?;
            after
        };
    }
    budget.push(&mut output, rest)?;
    Ok(output)
}

/// As [`expand`] from known variables; a reference to another name stays as it is.
///
/// # Errors
///
/// As [`expand`].
pub fn expand_known(
    input: &str,
    budget: &mut Budget,
    known: &BTreeMap<String, String>,
) -> Result<String, TooLong> {
    expand(input, budget, |name| known.get(name).cloned().unwrap_or_else(|| format!("$({name})")))
}

/// Why an expression comes to no path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoPath {
    /// The names that are missing, sorted, each once.
    Missing(Vec<String>),
    /// It comes to too much.
    TooLong(TooLong),
}

/// As [`expand`] for a path within a volume, where every variable must be there and not be empty.
///
/// # Errors
///
/// What is missing, or that the budget does not suffice.
pub fn expand_path(
    input: &str,
    budget: &mut Budget,
    known: &BTreeMap<String, String>,
) -> Result<String, NoPath> {
    let mut missing = BTreeSet::new();
    let expanded = expand(input, budget, |name| match known.get(name) {
        Some(value) if !value.is_empty() => value.clone(),
        Some(_) | None => {
            missing.insert(name.to_owned());
            String::new()
        }
    });
    let path = expanded.map_err(NoPath::TooLong)?;
    if missing.is_empty() { Ok(path) } else { Err(NoPath::Missing(missing.into_iter().collect())) }
}

#[cfg(test)]
mod tests;
