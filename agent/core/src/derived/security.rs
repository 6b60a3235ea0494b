//! What of the kernel a pod may set.
//!
//! Source: `pkg/kubelet/sysctl/safe_sysctls.go`, `allowlist.go`, `component-helpers/node/util/sysctl`; containerd
//! `internal/cri/server/podsandbox/sandbox_run_linux.go`.

use thiserror::Error;

use crate::spec::{IpcMode, NetworkMode, Pod, Sysctl, UserMode};

/// Longest name of a sysctl.
const NAME_BYTES_MAX: usize = 253;
/// Longest value: a page, what the kernel reads at once.
const VALUE_BYTES_MAX: usize = 4096;

/// Sysctls that every pod may set: namespaced, and without influence on other pods. All exist on the oldest kernel that
/// Berth supports.
const SAFE: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];

/// What a network namespace of a pod's own has unless the pod says otherwise: every user may listen on every port, and
/// ping (`enable_unprivileged_ports` and `enable_unprivileged_icmp` of containerd's CRI, both true where nothing is said).
const OF_OWN_NETWORK: [(&str, &str); 2] =
    [("net.ipv4.ip_unprivileged_port_start", "0"), (PING_GROUPS, "0 2147483647")];
const PING_GROUPS: &str = "net.ipv4.ping_group_range";

/// Why a pod's sysctls are refused: reason `SysctlForbidden` of the pod's failure, these words its message.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SysctlError {
    /// No name of a sysctl.
    #[error("forbidden sysctl: {name:?} is not a valid sysctl name")]
    Name {
        /// As written.
        name: String,
    },
    /// Neither safe nor allowed on this node.
    #[error("forbidden sysctl: {name:?} not allowlisted")]
    NotAllowed {
        /// As written.
        name: String,
    },
    /// It would change the node's own namespace.
    #[error("forbidden sysctl: {name:?} not allowed with host {namespace} enabled")]
    OfNode {
        /// As written.
        name: String,
        /// `Net` or `IPC`.
        namespace: &'static str,
    },
    /// A value that no sysctl has (CVE-2022-0811: separators smuggle in further settings).
    #[error("forbidden sysctl: invalid value {value:?} of {name:?}")]
    Value {
        /// As written.
        name: String,
        /// As written.
        value: String,
    },
}

/// The pod's sysctls with their names in dotted form, when it may set all of them: those that are safe, and those that
/// patterns of `allowedUnsafeSysctls` allow.
///
/// # Errors
///
/// The first that it may not set.
pub fn check_sysctls(pod: &Pod, allowed: &[String]) -> Result<Vec<Sysctl>, SysctlError> {
    pod.security.sysctls.iter().map(|sysctl| check(sysctl, pod, allowed)).collect()
}

/// What is set in the pod's namespaces: its own sysctls and those that every pod gets.
///
/// # Errors
///
/// The first that it may not set.
pub fn sandbox_sysctls(pod: &Pod, allowed: &[String]) -> Result<Vec<Sysctl>, SysctlError> {
    let mut all = check_sysctls(pod, allowed)?;
    if pod.network == NetworkMode::Pod {
        // A pod with a user namespace has not all of these groups.
        let has_groups = |name: &str| pod.users == UserMode::Node || name != PING_GROUPS;
        for (name, value) in OF_OWN_NETWORK.into_iter().filter(|(name, _)| has_groups(name)) {
            if !all.iter().any(|sysctl| sysctl.name == name) {
                all.push(Sysctl { name: name.to_owned(), value: value.to_owned() });
            }
        }
    }
    Ok(all)
}

/// Whether a pattern of `allowedUnsafeSysctls` can be kept: a valid name, with an optional trailing `*`, of a namespaced
/// sysctl.
#[must_use]
pub fn is_valid_pattern(pattern: &str) -> bool {
    let (prefix, starred) = match pattern.strip_suffix('*') {
        Some(prefix) => (prefix, true),
        None => (pattern, false),
    };
    let name = if starred { prefix.trim_end_matches(['.', '/', '-', '_']) } else { prefix };
    is_valid_name(name) && namespace(&dotted(prefix)).is_some()
}

fn check(sysctl: &Sysctl, pod: &Pod, allowed: &[String]) -> Result<Sysctl, SysctlError> {
    let written = || sysctl.name.clone();
    if !is_valid_name(&sysctl.name) {
        return Err(SysctlError::Name { name: written() });
    }
    let name = dotted(&sysctl.name);
    let Some(namespace) = namespace(&name) else {
        return Err(SysctlError::NotAllowed { name: written() });
    };
    if !SAFE.contains(&name.as_str()) && !allowed.iter().any(|pattern| matches(pattern, &name)) {
        return Err(SysctlError::NotAllowed { name: written() });
    }
    let of_node = match namespace {
        Namespace::Net => matches!(pod.network, NetworkMode::Node),
        Namespace::Ipc => matches!(pod.ipc, IpcMode::Node),
    };
    if of_node {
        return Err(SysctlError::OfNode { name: written(), namespace: namespace.as_str() });
    }
    let strange = |character: char| (character.is_control() && character != '\t') || "+=".contains(character);
    if sysctl.value.len() > VALUE_BYTES_MAX || sysctl.value.contains(strange) {
        return Err(SysctlError::Value { name: written(), value: sysctl.value.clone() });
    }
    Ok(Sysctl { name, value: sysctl.value.clone() })
}

fn matches(pattern: &str, name: &str) -> bool {
    let pattern = dotted(pattern);
    match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => name == pattern,
    }
}

/// Lower-case parts between dots or slashes, each beginning and ending with a letter or digit: so neither `..` nor a
/// leading separator is one.
fn is_valid_name(name: &str) -> bool {
    let letter = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    name.len() <= NAME_BYTES_MAX
        && name.split(['.', '/']).all(|part| {
            let bytes = part.as_bytes();
            bytes.first().is_some_and(letter)
                && bytes.last().is_some_and(letter)
                && bytes.iter().all(|byte| letter(byte) || matches!(byte, b'-' | b'_'))
        })
}

/// The form with dots. Where the first separator is a slash, slashes separate and dots belong to a name.
fn dotted(name: &str) -> String {
    if name.chars().find(|character| matches!(character, '.' | '/')) != Some('/') {
        return name.to_owned();
    }
    let swapped = name.chars().map(|character| match character {
        '.' => '/',
        '/' => '.',
        other => other,
    });
    swapped.collect()
}

#[derive(Clone, Copy)]
enum Namespace {
    Net,
    Ipc,
}

impl Namespace {
    fn as_str(self) -> &'static str {
        match self {
            Self::Net => "Net",
            Self::Ipc => "IPC",
        }
    }
}

/// The namespace that a sysctl, or every sysctl with this prefix, belongs to.
fn namespace(name: &str) -> Option<Namespace> {
    const IPC_PREFIXES: [&str; 3] = ["kernel.shm", "kernel.msg", "fs.mqueue."];
    if name.starts_with("net.") {
        Some(Namespace::Net)
    } else if name == "kernel.sem" || IPC_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
        Some(Namespace::Ipc)
    } else {
        None
    }
}

#[cfg(test)]
mod tests;
