//! Sysctls that belong to a pod's own namespaces.

use thiserror::Error;

use super::pod::{NamespaceType, Namespaces};

/// A sysctl that changes nothing but one namespace of the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sysctl {
    /// The kind of namespace that it is of.
    pub kind: NamespaceType,
    /// Its file below `/proc/sys`.
    pub file: String,
}

/// Why a sysctl is not set.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("set sysctl {name:?}: {why}")]
pub struct SysctlError {
    name: String,
    why: &'static str,
}

impl Namespaces {
    /// Reads the name of a sysctl of one of the pod's own namespaces. Any other would change the node.
    ///
    /// Names are written as for `sysctl -w`: with dots, or with slashes where a component has a dot (`sysctl.d(5)`).
    pub fn sysctl(&self, name: &str) -> Result<Sysctl, SysctlError> {
        let refuse = |why| SysctlError { name: name.to_owned(), why };
        let separator = name.find(['.', '/']).and_then(|at| name.get(at..=at));
        let parts: Vec<String> = match separator {
            Some("/") => name.split('/').map(str::to_owned).collect(),
            _ => name.split('.').map(|part| part.replace('/', ".")).collect(),
        };
        if parts.len() < 2 || !parts.iter().all(|part| is_component(part)) {
            return Err(refuse("it is not the name of a sysctl"));
        }
        let kind = kind(&parts).ok_or_else(|| refuse("it is not one of a network, IPC or UTS namespace"))?;
        if !self.is_pods(kind) {
            return Err(refuse("the pod shares that namespace with the node"));
        }
        Ok(Sysctl { kind, file: parts.join("/") })
    }
}

fn is_component(part: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'@' | b':');
    !part.is_empty() && !part.starts_with('.') && part.bytes().all(plain)
}

fn kind(parts: &[String]) -> Option<NamespaceType> {
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    match parts.as_slice() {
        ["net", ..] => Some(NamespaceType::Network),
        ["kernel", "sem"] | ["fs", "mqueue", _] => Some(NamespaceType::Ipc),
        ["kernel", key] if key.starts_with("shm") || key.starts_with("msg") => Some(NamespaceType::Ipc),
        ["kernel", "domainname"] => Some(NamespaceType::Uts),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::pod::Mode;
    use super::*;

    fn all(mode: Mode) -> Namespaces {
        Namespaces::new(mode, mode, mode, Mode::Container, None).unwrap()
    }

    #[test]
    fn cve_2022_0811_sysctls_reach_only_the_pods_own_namespaces() {
        let own = all(Mode::Pod);
        for (name, kind, file) in [
            ("net.ipv4.ip_forward", NamespaceType::Network, "net/ipv4/ip_forward"),
            (
                "net/ipv4/conf/eth0.100/forwarding",
                NamespaceType::Network,
                "net/ipv4/conf/eth0.100/forwarding",
            ),
            (
                "net.ipv4.conf.eth0/100.forwarding",
                NamespaceType::Network,
                "net/ipv4/conf/eth0.100/forwarding",
            ),
            ("kernel.shm_rmid_forced", NamespaceType::Ipc, "kernel/shm_rmid_forced"),
            ("kernel.msgmax", NamespaceType::Ipc, "kernel/msgmax"),
            ("kernel.sem", NamespaceType::Ipc, "kernel/sem"),
            ("fs.mqueue.msg_max", NamespaceType::Ipc, "fs/mqueue/msg_max"),
            ("kernel.domainname", NamespaceType::Uts, "kernel/domainname"),
        ] {
            assert_eq!(own.sysctl(name).unwrap(), Sysctl { kind, file: file.to_owned() });
            for mode in [Mode::Container, Mode::Node] {
                all(mode).sysctl(name).expect_err(name);
            }
        }
        for name in [
            "kernel.core_pattern",
            "kernel.hostname",
            "vm.swappiness",
            "user.max_user_namespaces",
            "net",
            "",
            "net..ipv4",
            "net/../kernel/core_pattern",
            "net.//.//.kernel.core_pattern",
            "net.ipv4.ip_forward+kernel.core_pattern",
            "net.ipv4.ip_forward\nkernel.core_pattern",
            "net/./ipv4",
            "fs.mqueue./..",
        ] {
            own.sysctl(name).expect_err(name);
        }
    }
}
