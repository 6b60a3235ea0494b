//! Who a container runs as.

use super::Bench;
use crate::{oci::ConfigError, spec::SupplementalGroupsPolicy};

fn ids(bench: &Bench) -> (u32, u32, Vec<u32>) {
    let user = bench.process().user().clone();
    (user.uid(), user.gid(), user.additional_gids().clone().unwrap())
}

#[test]
fn user_of_the_image() {
    for (text, expected) in [
        ("", (0, 0, vec![0, 10])),
        ("root", (0, 0, vec![0, 10])),
        ("0", (0, 0, vec![0, 10])),
        ("0:5", (0, 0, vec![0, 10])),
        ("web", (1000, 2000, vec![44, 2000, 3000])),
        ("1000", (1000, 2000, vec![44, 2000, 3000])),
        ("1000:7", (1000, 2000, vec![44, 2000, 3000])),
        ("web:nobody-knows", (1000, 2000, vec![44, 2000, 3000])),
        ("+1000", (1000, 2000, vec![44, 2000, 3000])),
        ("77", (77, 0, vec![0])),
        (":5", (0, 0, vec![0, 10])),
        ("2147483647", (2_147_483_647, 0, vec![0])),
    ] {
        let bench = Bench::with(|bench| bench.image.config.user = text.into());
        assert_eq!(ids(&bench), expected, "{text:?}");
    }
}

#[test]
fn user_and_group_of_the_pod_and_the_container() {
    // Pod user and group, container user and group, image.
    for (pod, container, image, uid, gid) in [
        ((Some(5), None), (None, None), "web", 5, 0),
        ((Some(5), None), (Some(6), None), "web", 6, 0),
        ((Some(5), Some(7)), (None, Some(8)), "web", 5, 8),
        ((Some(1000), None), (None, None), "", 1000, 2000),
        ((None, Some(9)), (None, None), "web", 1000, 9),
        ((None, Some(9)), (None, None), "", 0, 9),
        ((Some(0), None), (None, None), "web", 0, 0),
    ] {
        let bench = Bench::with(|bench| {
            (bench.pod.security.run_as_user, bench.pod.security.run_as_group) = pod;
            (bench.container.security.run_as_user, bench.container.security.run_as_group) = container;
            bench.image.config.user = image.into();
        });
        let (got_uid, got_gid, _) = ids(&bench);
        assert_eq!((got_uid, got_gid), (uid, gid), "{pod:?} {container:?} {image:?}");
    }
}

#[test]
fn cve_2024_40635_a_user_out_of_range_is_never_root() {
    for text in [
        "2147483648",
        "4294967295",
        "4294967296",
        "18446744073709551616",
        "-1",
        "-4294967296",
        "99999999999:0",
    ] {
        let bench = Bench::with(|bench| bench.image.config.user = text.into());
        assert_eq!(bench.error(), ConfigError::IdOutOfRange { user: text.into(), which: "uid" }, "{text}");
    }
    // What only looks like a number is a name, and nobody has it.
    for text in ["0x0", "1e3", "٣", "1_000", "0 ", "+", "-", "+-5"] {
        let bench = Bench::with(|bench| bench.image.config.user = text.into());
        assert_eq!(bench.error(), ConfigError::NoSuchUser { name: text.into() }, "{text}");
    }
    for (uid, gid) in [(u32::MAX, 0), (1 << 31, 0), (0, 1 << 31)] {
        let bench = Bench::with(|bench| {
            bench.container.security.run_as_user = Some(uid);
            bench.container.security.run_as_group = Some(gid);
        });
        assert!(matches!(bench.error(), ConfigError::IdOutOfRange { .. }), "{uid}:{gid}");
    }
    // An account file cannot bring one either.
    for line in ["evil:x:4294967296:0::/:", "evil:x:-1:0::/:", "evil:x::0::/:", "evil:x", "evil"] {
        let bench = Bench::with(|bench| {
            bench.image.config.user = "evil".into();
            bench.accounts.passwd = format!("{line}\n");
        });
        assert_eq!(bench.error(), ConfigError::NoSuchUser { name: "evil".into() }, "{line}");
    }
}

#[test]
fn a_user_with_control_characters_or_without_end_is_refused() {
    for text in ["web\nroot", "web\0", "\t", &"x".repeat(257)] {
        let bench = Bench::with(|bench| bench.image.config.user = text.to_owned());
        assert!(matches!(bench.error(), ConfigError::UserSyntax { .. }), "{text:?}");
    }
}

#[test]
fn run_as_non_root_has_the_kubelets_answers() {
    let pod = "web-node-1_shop(0b1c-2d)";
    for (run_as_user, image, expected) in [
        (None, "1000", None),
        (None, "1000:0", None),
        (Some(5), "", None),
        (Some(5), "root", None),
        (
            Some(0),
            "1000",
            Some(format!("container's runAsUser breaks non-root policy (pod: {pod:?}, container: web)")),
        ),
        (
            None,
            "",
            Some(format!(
                "container has runAsNonRoot and image will run as root (pod: {pod:?}, container: web)"
            )),
        ),
        (
            None,
            "0:1000",
            Some(format!(
                "container has runAsNonRoot and image will run as root (pod: {pod:?}, container: web)"
            )),
        ),
        (
            None,
            "web",
            Some(format!(
                "container has runAsNonRoot and image has non-numeric user (web), cannot verify user is non-root \
                 (pod: {pod:?}, container: web)"
            )),
        ),
    ] {
        let bench = Bench::with(|bench| {
            bench.pod.security.run_as_non_root = Some(true);
            bench.pod.security.run_as_user = run_as_user;
            bench.image.config.user = image.into();
        });
        match expected {
            None => assert!(bench.plan().is_ok(), "{image:?}"),
            Some(expected) => {
                let error = bench.error();
                assert_eq!(error.to_string(), expected);
                assert_eq!(error.reason(), "CreateContainerConfigError");
            }
        }
    }
    let own = Bench::with(|bench| {
        bench.pod.security.run_as_non_root = Some(true);
        bench.container.security.run_as_non_root = Some(false);
    });
    own.plan().unwrap();
}

#[test]
fn cve_2019_11245_every_start_runs_as_the_same_user() {
    let mut bench = Bench::with(|bench| {
        bench.pod.security.run_as_non_root = Some(true);
        bench.image.config.user = "1000".into();
    });
    let mut seen = Vec::new();
    for attempt in 0..4 {
        bench.attempt = attempt;
        seen.push(ids(&bench));
    }
    seen.dedup();
    assert_eq!(seen, [(1000, 2000, vec![44, 2000, 3000])]);
}

#[test]
fn cve_2022_2995_and_cve_2023_25173_groups_are_exactly_these() {
    use SupplementalGroupsPolicy::{Merge, Strict};
    for (policy, fs_group, named, image, expected) in [
        (Merge, None, vec![], "web", vec![44, 2000, 3000]),
        (Merge, Some(500), vec![600, 44], "web", vec![44, 500, 600, 2000, 3000]),
        (Strict, None, vec![], "web", vec![2000]),
        (Strict, Some(500), vec![600], "web", vec![500, 600, 2000]),
        (Merge, None, vec![7], "77", vec![0, 7]),
        (Strict, None, vec![7], "", vec![0, 7]),
    ] {
        let bench = Bench::with(|bench| {
            bench.pod.security.supplemental_groups_policy = policy;
            bench.pod.security.fs_group = fs_group;
            bench.pod.security.supplemental_groups = named.clone();
            bench.image.config.user = image.into();
        });
        assert_eq!(ids(&bench).2, expected, "{policy:?} {fs_group:?} {named:?} {image:?}");
    }
}

#[test]
fn broken_account_files_are_read_past() {
    let bench = Bench::with(|bench| {
        bench.image.config.user = "web".into();
        bench.accounts.passwd = "# web:x:1:1\n\n:x:3:3\nweb:x:a:b\n  web:x:1000:2000:::\nweb:x:0:0\n".into();
        bench.accounts.group = "\n#g:x:1:web\ng\ng:x\ng:x:5\ng:x:6:web\nh:x:7:webber,x\n".into();
    });
    assert_eq!(ids(&bench), (1000, 2000, vec![6, 2000]));
}
