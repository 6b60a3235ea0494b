//! Whether AppArmor profiles are enforced. Source: `third_party/forked/libcontainer/apparmor/apparmor_linux.go`, containerd
//! `pkg/apparmor/apparmor_linux.go`.

use std::{fs, path::Path};

use berth_core::config::AppArmor;

/// What a node has whose root this is. In a container, of which its manager tells (`container` in the environment), profiles are
/// the machine's.
pub(super) fn found(root: &Path, is_contained: bool) -> AppArmor {
    let is_there = |path: &str| root.join(path).exists();
    let enabled = fs::read_to_string(root.join("sys/module/apparmor/parameters/enabled"));
    if !is_there("sys/kernel/security/apparmor") || !enabled.is_ok_and(|text| text.starts_with('Y')) {
        return AppArmor::Absent;
    }
    if is_there("sbin/apparmor_parser") && !is_contained { AppArmor::Enforced } else { AppArmor::Unused }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_are_enforced_where_the_kernel_does_a_parser_is_there_and_the_node_is_no_container() {
        for (security, enabled, parser, is_contained, expected) in [
            (false, None, true, false, AppArmor::Absent),
            (true, None, true, false, AppArmor::Absent),
            (true, Some("N\n"), true, false, AppArmor::Absent),
            (false, Some("Y\n"), true, false, AppArmor::Absent),
            (true, Some("Y\n"), false, false, AppArmor::Unused),
            (true, Some("Y\n"), true, false, AppArmor::Enforced),
            (true, Some("Y\n"), true, true, AppArmor::Unused),
            (true, None, true, true, AppArmor::Absent),
        ] {
            let root = tempfile::tempdir().unwrap();
            let make = |path: &str, text: &str| {
                let path = root.path().join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            };
            if security {
                make("sys/kernel/security/apparmor/profiles", "");
            }
            if let Some(enabled) = enabled {
                make("sys/module/apparmor/parameters/enabled", enabled);
            }
            if parser {
                make("sbin/apparmor_parser", "");
            }
            assert_eq!(
                found(root.path(), is_contained),
                expected,
                "{security} {enabled:?} {parser} {is_contained}"
            );
        }
    }
}
