//! Whether the kernel has SELinux, and what its policy has for containers.
//!
//! Source: `getSelinuxMountPoint`, `getEnabled`, `openContextFile` of `go-selinux/selinux_linux.go`, `github.com/opencontainers/selinux`.

use std::path::{Path, PathBuf};

use rustix::fs::{StatVfsMountFlags, statfs, statvfs};

use super::{FactsError, text, text_or_empty};

/// `SELINUX_MAGIC` of `linux/magic.h`.
const MAGIC: i64 = 0xf97c_ff8c;

/// Where it is mounted, on whatever has a policy.
const FILE_SYSTEM: &str = "sys/fs/selinux";

/// The label of this process, which is the kernel's own as long as no policy is loaded.
const OWN_LABEL: &str = "proc/thread-self/attr/current";

/// Labels for containers, before those of the policy.
const CONTEXTS: &str = "usr/share/containers/selinux/contexts";

/// Names the policy.
const CONFIG: &str = "etc/selinux/config";

/// The policy's labels for containers; `None` where the kernel does not have SELinux. Empty when it has none.
///
/// # Errors
/// They are there and cannot be read.
pub(super) fn contexts(root: &Path) -> Result<Option<String>, FactsError> {
    if is_enforced(root) { for_containers(root).map(Some) } else { Ok(None) }
}

/// Whether a policy is loaded, enforcing or not. Where its file system is read-only, as in a container, nobody may use it.
fn is_enforced(root: &Path) -> bool {
    let path = root.join(FILE_SYSTEM);
    let has_magic = statfs(&path).is_ok_and(|found| found.f_type == MAGIC);
    let is_writable = statvfs(&path).is_ok_and(|found| !found.f_flag.contains(StatVfsMountFlags::RDONLY));
    let label = text(&root.join(OWN_LABEL)).unwrap_or_default();
    has_magic && is_writable && label.trim_end_matches(['\0', '\n']) != "kernel"
}

fn for_containers(root: &Path) -> Result<String, FactsError> {
    if let Ok(found) = text(&root.join(CONTEXTS)) {
        return Ok(found);
    }
    let config = text_or_empty(&root.join(CONFIG))?;
    let lines = config.lines().map(str::trim).filter(|line| !line.starts_with([';', '#']));
    let mut named = lines.filter_map(|line| line.strip_prefix("SELINUXTYPE="));
    let policy = named.next().unwrap_or_default().trim_matches('"');
    let path: PathBuf = ["etc/selinux", policy, "contexts/lxc_contexts"].iter().collect();
    text_or_empty(&root.join(path))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn contexts_are_the_nodes_for_containers_or_those_of_its_policy() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let found = || for_containers(dir.path()).unwrap();
        assert_eq!(found(), "");
        write(
            CONFIG,
            "# SELINUXTYPE=mls\nSELINUX=enforcing\n  SELINUXTYPE=\"targeted\"\nSELINUXTYPE=other\n",
        );
        assert_eq!(found(), "");
        write("etc/selinux/mls/contexts/lxc_contexts", "mls");
        write("etc/selinux/targeted/contexts/lxc_contexts", "targeted");
        assert_eq!(found(), "targeted");
        write(CONTEXTS, "containers");
        assert_eq!(found(), "containers");
    }

    #[test]
    fn a_directory_at_its_place_is_no_policy() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!is_enforced(dir.path()));
        fs::create_dir_all(dir.path().join(FILE_SYSTEM)).unwrap();
        assert!(!is_enforced(dir.path()));
        assert_eq!(contexts(dir.path()).unwrap(), None);
    }
}
