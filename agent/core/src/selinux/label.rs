//! What a container's process and its files are labelled with.

use thiserror::Error;

use super::{Context, is_level};
use crate::spec::{Container, Pod, SeLinuxOptions};

/// What SELinux of the node gives to containers. A node has none where the kernel does not have it, or containerd's `enable_selinux` is not
/// set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SeLinux {
    /// Of processes.
    pub process: Option<Context>,
    /// Of processes that run virtual machines.
    pub kvm_process: Option<Context>,
    /// Of files.
    pub file: Option<Context>,
    /// Of how many categories the levels of pods are made.
    pub categories: u32,
}

/// Labels of one container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Labels {
    /// Of its processes.
    pub process: Option<String>,
    /// Of its processes where they run in a virtual machine.
    pub vm_process: Option<String>,
    /// Of its files.
    pub mount: Option<String>,
}

/// Files that are given a label before a container begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relabel {
    /// The label.
    pub label: String,
    /// Where they are: all of the pod's own, and none of the node's (CVE-2021-43816).
    pub places: Vec<RelabelPlace>,
}

/// A file, or a directory with all that is below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelabelPlace {
    /// Absolute path, of which the pod chooses nothing.
    pub root: String,
    /// What of it is meant, where that is not all, as the pod wrote it.
    pub part: Option<String>,
    /// What the agent has mounted at the root. What else is mounted there is somebody else's.
    pub mounted: Mounted,
}

/// What is mounted at a root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mounted {
    /// Nothing: it is a directory or a file.
    Nothing,
    /// A file system in memory.
    Memory,
    /// A directory of the node.
    Bound,
}

/// Why a pod can have no labels. The words are containerd's where it has some.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LabelError {
    /// `level` has another form.
    #[error("the format of 'level' {0:?} is not correct")]
    Level(String),
    /// The pod has no level of its own, without which it could reach what is others'.
    #[error("every level of {0} categories is another pod's")]
    NoLevel(u32),
    /// A user, role or type with characters that no policy has in names, and that mean something around them.
    #[error("the format of '{part}' {value:?} is not correct")]
    Part {
        /// `user`, `role` or `type`.
        part: &'static str,
        /// As it is written.
        value: String,
    },
}

impl SeLinux {
    /// Reads a policy's file of contexts for containers (`contexts`, `lxc_contexts`).
    #[must_use]
    pub fn of(contexts: &str, categories: u32) -> Self {
        let mut found = Self { categories, ..Self::default() };
        let lines = contexts.lines().map(str::trim).filter(|line| !line.starts_with([';', '#']));
        for (key, value) in lines.filter_map(|line| line.split_once('=')) {
            let context = Context::of(value.trim().trim_matches('"'));
            match key.trim() {
                "process" => found.process = context,
                "kvm_process" => found.kvm_process = context,
                "file" => found.file = context,
                _ => {}
            }
        }
        found
    }

    /// Whether its policy keeps containers apart by levels, of which each pod needs one then.
    #[must_use]
    pub fn has_levels(&self) -> bool {
        self.file.is_some() && self.process.as_ref().is_some_and(|context| context.level.is_some())
    }

    /// Source: `InitLabels`, `SetProcessKind`.
    fn labels(&self, options: &SeLinuxOptions, level: Option<&str>) -> Labels {
        let (Some(process), Some(file)) = (&self.process, &self.file) else {
            return Labels { mount: self.file.as_ref().map(Context::to_string), ..Labels::default() };
        };
        let or = |own: &str, other: &str| if own.is_empty() { other.to_owned() } else { own.to_owned() };
        let own_level = Some(options.level.as_str()).filter(|level| !level.is_empty());
        let level = own_level.or(level.filter(|_| self.has_levels())).map(str::to_owned);
        let process = Context {
            user: or(&options.user, &process.user),
            role: or(&options.role, &process.role),
            kind: or(&options.kind, &process.kind),
            level: level.clone().or_else(|| process.level.clone()),
        };
        let file = Context {
            user: or(&options.user, &file.user),
            level: level.or_else(|| file.level.clone()),
            ..file.clone()
        };
        let of_vm = self.kvm_process.as_ref().or(self.process.as_ref());
        let kind = of_vm.map_or_else(|| process.kind.clone(), |context| context.kind.clone());
        Labels {
            process: Some(process.to_string()),
            vm_process: Some(Context { kind, ..process }.to_string()),
            mount: Some(file.to_string()),
        }
    }
}

/// Labels of a container of a pod with this level: by its own options, or by the pod's where it has none. Those of the two are not mixed
/// (`DetermineEffectiveSecurityContext` of `pkg/securitycontext`), but for the level, which is the pod's unless the container names one.
/// A privileged container's process has none.
///
/// # Errors
/// The options have a form that containerd refuses, which it does with SELinux or without, or that no policy knows; or the policy has levels
/// and the pod none.
pub fn labels(
    node: Option<&SeLinux>,
    pod: &Pod,
    container: &Container,
    level: Option<&str>,
) -> Result<Labels, LabelError> {
    let own = &container.security.se_linux;
    let options = if own.is_empty() { &pod.security.se_linux } else { own };
    check(node, options)?;
    let Some(node) = node else { return Ok(Labels::default()) };
    let level = of_pod(pod).or(level);
    check_level(node, level)?;
    let labels = node.labels(options, level);
    match container.security.privileged {
        true => Ok(Labels { mount: labels.mount, ..Labels::default() }),
        false => Ok(labels),
    }
}

/// Whether a sandbox of a pod with this level can have labels.
///
/// # Errors
/// See [`labels`].
pub fn check_sandbox(node: Option<&SeLinux>, pod: &Pod, level: Option<&str>) -> Result<(), LabelError> {
    check(node, &pod.security.se_linux)?;
    node.map_or(Ok(()), |node| check_level(node, of_pod(pod).or(level)))
}

/// The level that a pod names.
fn of_pod(pod: &Pod) -> Option<&str> {
    Some(pod.security.se_linux.level.as_str()).filter(|level| !level.is_empty())
}

fn check_level(node: &SeLinux, level: Option<&str>) -> Result<(), LabelError> {
    if node.has_levels() && level.is_none() { Err(LabelError::NoLevel(node.categories)) } else { Ok(()) }
}

/// Whether labels can be made of options.
fn check(node: Option<&SeLinux>, options: &SeLinuxOptions) -> Result<(), LabelError> {
    let SeLinuxOptions { user, role, kind, level } = options;
    if !level.is_empty() && !is_level(level) {
        return Err(LabelError::Level(level.clone()));
    }
    let parts = [("user", user), ("role", role), ("type", kind)];
    match parts.into_iter().find(|(_, value)| node.is_some() && !is_name(value)) {
        Some((part, value)) => Err(LabelError::Part { part, value: value.clone() }),
        None => Ok(()),
    }
}

/// Whether a text may be a part of a label: runtimes write that between quotes into options of mounts.
fn is_name(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"'\\,:".contains(&byte))
}

#[cfg(test)]
mod tests;
