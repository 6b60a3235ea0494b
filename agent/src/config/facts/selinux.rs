//! Whether the kernel has SELinux, and what its policy has for containers.
//!
//! Source: `getSelinuxMountPoint`, `getEnabled`, `openContextFile` of `go-selinux/selinux_linux.go`, `github.com/opencontainers/selinux`.

use std::path::{Path, PathBuf};

use rustix::fs::{StatVfsMountFlags, statfs, statvfs};

use super::text;

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

/// The policy's labels for containers; `None` where the kernel does not have SELinux. Empty when it has none, or they cannot be read: nobody
/// may have asked for them.
pub(super) fn contexts(root: &Path) -> Option<String> {
    let path = root.join(FILE_SYSTEM);
    let magic = statfs(&path).ok()?.f_type;
    let is_read_only = statvfs(&path).ok()?.f_flag.contains(StatVfsMountFlags::RDONLY);
    let own_label = text(&root.join(OWN_LABEL)).unwrap_or_default();
    is_enforced(magic, is_read_only, &own_label).then(|| for_containers(root))
}

/// Whether a policy is loaded, enforcing or not. Where its file system is read-only, as in a container, nobody may use it.
fn is_enforced(magic: i64, is_read_only: bool, own_label: &str) -> bool {
    magic == MAGIC && !is_read_only && own_label.trim_end_matches(['\0', '\n']) != "kernel"
}

fn for_containers(root: &Path) -> String {
    let read = |path: &Path| text(&root.join(path)).unwrap_or_default();
    if let Ok(found) = text(&root.join(CONTEXTS)) {
        return found;
    }
    let config = read(Path::new(CONFIG));
    let lines = config.lines().map(str::trim).filter(|line| !line.starts_with([';', '#']));
    let mut named = lines.filter_map(|line| line.strip_prefix("SELINUXTYPE="));
    let policy = named.next().unwrap_or_default().trim_matches('"');
    let path: PathBuf = ["etc/selinux", policy, "contexts/lxc_contexts"].iter().collect();
    read(&path)
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
        let found = || for_containers(dir.path());
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
    fn what_cannot_be_read_gives_no_labels() {
        let dir = tempfile::tempdir().unwrap();
        for path in [CONFIG, CONTEXTS] {
            fs::create_dir_all(dir.path().join(path)).unwrap();
        }
        assert_eq!(for_containers(dir.path()), "");
    }

    #[test]
    fn a_policy_is_loaded_where_processes_have_labels_of_it_and_its_files_may_be_written() {
        for (magic, is_read_only, own_label, expected) in [
            (MAGIC, false, "system_u:system_r:unconfined_service_t:s0\0", true),
            (MAGIC, false, "unconfined_u:unconfined_r:unconfined_t:s0\n", true),
            (MAGIC, false, "kernel\0", false),
            (MAGIC, false, "kernel\n", false),
            (MAGIC, true, "system_u:system_r:container_t:s0\0", false),
            (0x6265_6572, false, "system_u:system_r:unconfined_service_t:s0\0", false),
        ] {
            assert_eq!(is_enforced(magic, is_read_only, own_label), expected, "{magic:x} {own_label:?}");
        }
    }

    #[test]
    fn a_directory_at_its_place_is_no_policy() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(contexts(dir.path()), None);
        fs::create_dir_all(dir.path().join(FILE_SYSTEM)).unwrap();
        assert_eq!(contexts(dir.path()), None);
    }
}
