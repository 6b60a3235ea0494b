//! AppArmor profiles of containers.
//!
//! Source: containerd `internal/cri/sputil/apparmor_linux.go`, `contrib/apparmor/template.go`.

use super::{ConfigError, ContainerInputs};
use crate::{config::AppArmor, derived::app_armor, spec::AppArmorProfile};

/// Name of the runtime's default profile, which is loaded where the node does not have it: containerd's CRI and whoever looks for it
/// know it by this name.
pub const DEFAULT_PROFILE: &str = "cri-containerd.apparmor.d";

/// The profile that a container's first process begins under.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AppArmorChoice {
    /// The runtime's default, to be loaded where it is missing.
    Default,
    /// One that the node has.
    Localhost(String),
}

impl AppArmorChoice {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Default => DEFAULT_PROFILE,
            Self::Localhost(name) => name,
        }
    }

    /// Whether it is among profiles as the kernel lists them: one on each line, a mode in brackets after it.
    #[must_use]
    pub fn is_among(&self, profiles: &str) -> bool {
        let is_it = |line: &str| line.strip_prefix(self.name()).is_some_and(|rest| rest.starts_with(" ("));
        !self.name().is_empty() && profiles.lines().any(is_it)
    }
}

/// A container that names none has the default one where profiles are enforced, unless it is privileged. What cannot be enforced
/// starts nothing.
pub(super) fn choice(inputs: &ContainerInputs<'_>) -> Result<Option<AppArmorChoice>, ConfigError> {
    let profile = app_armor::profile(inputs.pod, inputs.container);
    let asked = match (inputs.node.app_armor, profile.as_deref()) {
        (_, Some(AppArmorProfile::Unconfined)) | (AppArmor::Absent | AppArmor::Unused, None) => {
            return Ok(None);
        }
        (AppArmor::Absent | AppArmor::Unused, Some(_)) => {
            return Err(ConfigError::AppArmor { why: "apparmor is not supported".to_owned() });
        }
        (AppArmor::Enforced, asked) => asked,
    };
    Ok(match asked {
        Some(AppArmorProfile::Localhost(name)) => {
            Some(AppArmorChoice::Localhost(name.strip_prefix("localhost/").unwrap_or(name).to_owned()))
        }
        Some(AppArmorProfile::RuntimeDefault | AppArmorProfile::Unconfined) | None => {
            (!inputs.container.security.privileged).then_some(AppArmorChoice::Default)
        }
    })
}

/// What the text of the default profile depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProfileTerms<'a> {
    /// The profile that this process runs under, as the kernel tells it: it signals what runs in containers.
    pub own: &'a str,
    /// Whether the node has the rules of AppArmor 3.0 to go by (`abi/3.0`).
    pub has_abi: bool,
}

/// The default profile, as `apparmor_parser` reads it: what changes the node is kept from processes that are root in their container
/// alone. Of `/proc` they write what is of processes and of shared memory, and of `/sys` cgroups.
#[must_use]
pub fn default_profile(terms: ProfileTerms<'_>) -> String {
    let abi = if terms.has_abi { "abi <abi/3.0>,\n" } else { "" };
    let own = terms.own.split_whitespace().next().unwrap_or_default();
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || "-_./".contains(letter);
    let peers = match own {
        "" | "unconfined" => "unconfined,runc,crun".to_owned(),
        own if own.chars().all(is_name) => format!("unconfined,runc,crun,{own}"),
        _strange => "unconfined,runc,crun".to_owned(),
    };
    let mut rules = vec![
        "file".to_owned(),
        "network".to_owned(),
        "capability".to_owned(),
        "umount".to_owned(),
        "deny mount".to_owned(),
        format!("signal (receive) peer={{{peers}}}"),
        format!("signal (send, receive) peer={DEFAULT_PROFILE}"),
        format!("ptrace (trace, tracedby, read, readby) peer={DEFAULT_PROFILE}"),
    ];
    rules.extend(WRITES_KEPT.iter().map(|path| format!("deny {path} w")));
    rules.extend(CHANGES_KEPT.iter().map(|path| format!("deny {path} wklx")));
    rules.extend(HIDDEN.iter().map(|path| format!("deny {path} rwklx")));
    let rules: String = rules.into_iter().map(|rule| format!("  {rule},\n")).collect();
    format!("{abi}profile {DEFAULT_PROFILE} flags=(attach_disconnected, mediate_deleted) {{\n{rules}}}\n")
}

/// Files of `/proc` itself; its directories but those of processes and `sys`; of that all but `kernel/shm*`.
const WRITES_KEPT: [&str; 12] = [
    "/proc/*",
    "/proc/[^1-9s]*/**",
    "/proc/s[^y]*/**",
    "/proc/sy[^s]*/**",
    "/proc/sys?*/**",
    "/proc/sys/[^k]**",
    "/proc/sys/k[^e]**",
    "/proc/sys/ke[^r]**",
    "/proc/sys/kernel/[^s]**",
    "/proc/sys/kernel/s[^h]**",
    "/proc/sys/kernel/sh[^m]**",
    "/proc/sys/kernel/{s,sh}",
];

/// All of `/sys` but `fs/cgroup`.
const CHANGES_KEPT: [&str; 5] =
    ["/sys/[^f]**", "/sys/f[^s]**", "/sys/fs/[^c]**", "/sys/fs/c[^g]**", "/sys/fs/cg[^r]**"];

/// What tells of the machine, or ends it.
const HIDDEN: [&str; 5] = [
    "/proc/sysrq-trigger",
    "/proc/kcore",
    "/sys/firmware/**",
    "/sys/devices/virtual/powercap/**",
    "/sys/kernel/security/**",
];
