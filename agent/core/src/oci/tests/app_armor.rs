//! AppArmor profiles.

use AppArmorProfile::{Localhost, RuntimeDefault, Unconfined};

use super::Bench;
use crate::{
    config::AppArmor,
    oci::{DEFAULT_PROFILE, NodeParts, ProfileTerms, complete, default_profile},
    spec::AppArmorProfile,
};

/// What the process begins under, or why there is none.
fn begun(node: AppArmor, asked: Option<AppArmorProfile>, privileged: bool, loaded: Option<&str>) -> String {
    let bench = Bench::with(|bench| {
        bench.node.app_armor = node;
        bench.container.security.app_armor = asked;
        bench.container.security.privileged = privileged;
    });
    let completed = bench.plan().and_then(|plan| {
        assert_eq!(*plan.spec.process().as_ref().unwrap().apparmor_profile(), None, "not before it is known");
        complete(&plan, NodeParts { app_armor: loaded, ..NodeParts::default() })
    });
    match completed {
        Ok(spec) => spec.process().clone().unwrap().apparmor_profile().clone().unwrap_or_default(),
        Err(error) => {
            assert_eq!(error.reason(), "CreateContainerError");
            error.to_string()
        }
    }
}

#[test]
fn what_a_process_begins_under() {
    const NOT_SUPPORTED: &str = "failed to generate apparmor spec opts: apparmor is not supported";
    let strict = || Some(Localhost("strict".into()));
    let loaded = "other (enforce)\ncri-containerd.apparmor.d (enforce)\nstrict (complain)\n";
    for (node, asked, privileged, expected) in [
        (AppArmor::Absent, None, false, ""),
        (AppArmor::Absent, Some(Unconfined), false, ""),
        (AppArmor::Absent, Some(RuntimeDefault), false, NOT_SUPPORTED),
        (AppArmor::Unused, None, false, ""),
        (AppArmor::Unused, Some(RuntimeDefault), false, NOT_SUPPORTED),
        (AppArmor::Unused, strict(), true, NOT_SUPPORTED),
        (AppArmor::Enforced, None, false, DEFAULT_PROFILE),
        (AppArmor::Enforced, None, true, ""),
        (AppArmor::Enforced, Some(RuntimeDefault), false, DEFAULT_PROFILE),
        (AppArmor::Enforced, Some(RuntimeDefault), true, ""),
        (AppArmor::Enforced, Some(Unconfined), false, ""),
        (AppArmor::Enforced, strict(), false, "strict"),
        (AppArmor::Enforced, strict(), true, "strict"),
        (AppArmor::Enforced, Some(Localhost("localhost/strict".into())), false, "strict"),
    ] {
        assert_eq!(begun(node, asked.clone(), privileged, Some(loaded)), expected, "{node:?} {asked:?}");
    }
}

#[test]
fn a_profile_that_is_not_loaded_starts_nothing() {
    for (asked, loaded) in [
        (Localhost("strict".into()), Some("stricter (enforce)\nstrict-er (enforce)\nnot strict (enforce)\n")),
        (Localhost("strict".into()), Some("")),
        (Localhost("strict".into()), None),
        (Localhost(String::new()), Some(" (enforce)\n")),
        (Localhost("a (enforce)\nb".into()), Some("a (enforce)\nb (enforce)\n")),
        (RuntimeDefault, Some("other (enforce)\n")),
        (RuntimeDefault, None),
    ] {
        let found = begun(AppArmor::Enforced, Some(asked.clone()), false, loaded);
        let start = "failed to generate apparmor spec opts: apparmor profile not found ";
        assert!(found.starts_with(start), "{asked:?} {loaded:?}: {found}");
    }
}

#[test]
fn the_default_profile() {
    let text = default_profile(ProfileTerms { own: "unconfined\n", has_abi: true });
    assert_eq!(text, include_str!("app_armor.profile"));
    let signal = |own| {
        let text = default_profile(ProfileTerms { own, has_abi: false });
        assert!(text.starts_with("profile "), "{text}");
        text.lines().find(|line| line.contains("signal (receive)")).unwrap().trim().to_owned()
    };
    for (own, expected) in [
        ("/usr/bin/berth (enforce)\n", "signal (receive) peer={unconfined,runc,crun,/usr/bin/berth},"),
        ("", "signal (receive) peer={unconfined,runc,crun},"),
        ("a},capability (enforce)", "signal (receive) peer={unconfined,runc,crun},"),
    ] {
        assert_eq!(signal(own), expected, "{own}");
    }
}
