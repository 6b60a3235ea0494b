//! Security settings of pods and containers.

use super::Sysctl;

/// `spec.securityContext`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodSecurity {
    /// User of every container that does not name its own.
    pub run_as_user: Option<u32>,
    /// Group of every container that does not name its own.
    pub run_as_group: Option<u32>,
    /// Refuse to start as user 0.
    pub run_as_non_root: Option<bool>,
    /// Groups beside the primary one.
    pub supplemental_groups: Vec<u32>,
    /// Whether the image's group file adds groups too.
    pub supplemental_groups_policy: SupplementalGroupsPolicy,
    /// Group that owns the pod's volumes.
    pub fs_group: Option<u32>,
    /// When ownership of volumes is changed that were there before the pod. An emptyDir was not.
    pub fs_group_change: FsGroupChange,
    /// Namespaced sysctls.
    pub sysctls: Vec<Sysctl>,
    /// Seccomp profile of every container that does not name its own.
    pub seccomp: Option<Seccomp>,
    /// AppArmor profile of every container that does not name its own.
    pub app_armor: Option<AppArmorProfile>,
    /// SELinux label of every container that does not name its own.
    pub se_linux: SeLinuxOptions,
}

/// `supplementalGroupsPolicy` (KEP-3619).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SupplementalGroupsPolicy {
    /// Groups of the image's `/etc/group` are added.
    #[default]
    Merge,
    /// Only the groups that the pod names.
    Strict,
}

/// `fsGroupChangePolicy`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FsGroupChange {
    /// Always, recursively.
    #[default]
    Always,
    /// Only when the root of the volume does not match.
    OnRootMismatch,
}

/// `containers[].securityContext`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContainerSecurity {
    /// All capabilities, all devices, nothing masked.
    pub privileged: bool,
    /// Root file system mounted read-only.
    pub read_only_root: bool,
    /// `allowPrivilegeEscalation`; `false` sets no_new_privs.
    pub allow_privilege_escalation: Option<bool>,
    /// User.
    pub run_as_user: Option<u32>,
    /// Group.
    pub run_as_group: Option<u32>,
    /// Refuse to start as user 0.
    pub run_as_non_root: Option<bool>,
    /// Capabilities added to and dropped from the default set.
    pub capabilities: Capabilities,
    /// What of `/proc` is masked.
    pub proc_mount: ProcMount,
    /// Seccomp profile.
    pub seccomp: Option<Seccomp>,
    /// AppArmor profile.
    pub app_armor: Option<AppArmorProfile>,
    /// SELinux label.
    pub se_linux: SeLinuxOptions,
}

/// Changes to the default capability set; names without `CAP_`, upper case; `ALL` stands for all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Added after dropping.
    pub add: Vec<String>,
    /// Dropped first.
    pub drop: Vec<String>,
}

/// `procMount`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ProcMount {
    /// The usual paths are masked or read-only.
    #[default]
    Default,
    /// Nothing is.
    Unmasked,
}

/// `seccompProfile`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seccomp {
    /// No filter.
    Unconfined,
    /// The runtime's default filter.
    RuntimeDefault,
    /// A file below the node's seccomp directory: relative, without `..`, not empty.
    Localhost(String),
}

/// `appArmorProfile` (KEP-24).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AppArmorProfile {
    /// None.
    Unconfined,
    /// The runtime's default.
    RuntimeDefault,
    /// One that the node has loaded, by its name.
    Localhost(String),
}

/// `seLinuxOptions`: parts of a label, as written. One that is empty is the node's to choose.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SeLinuxOptions {
    /// User.
    pub user: String,
    /// Role.
    pub role: String,
    /// Type.
    pub kind: String,
    /// MLS or MCS level.
    pub level: String,
}

impl SeLinuxOptions {
    /// Whether it says nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { user, role, kind, level } = self;
        [user, role, kind, level].into_iter().all(String::is_empty)
    }
}
