//! Versions of what containers are run with that are known to let them out.
//!
//! They are told and not refused: a distribution may have mended one without another number.

use semver::{Prerelease, Version};

/// A program that the agent has containers run by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// containerd.
    Containerd,
    /// The OCI runtime runc.
    Runc,
}

/// What is known of a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flaw {
    /// By which names.
    pub known_as: &'static str,
    /// The next version without it.
    pub fixed_in: Version,
}

/// The first version of each release line without what is known of the older ones, in order. Later lines never had it.
struct Fixes {
    known_as: &'static str,
    lines: &'static [&'static str],
}

/// Sources: the security advisories of opencontainers/runc of November 2025 (masked paths, `/dev/console` and writes to procfs that are led
/// elsewhere) and of containerd of June 2026.
const RUNC: Fixes = Fixes {
    known_as: "CVE-2025-31133, CVE-2025-52565, CVE-2025-52881",
    lines: &["1.2.8", "1.3.3", "1.4.0-rc.3"],
};
const CONTAINERD: Fixes = Fixes {
    known_as: "CVE-2026-47262, CVE-2026-53488, CVE-2026-53489, CVE-2026-53492",
    lines: &["2.0.10", "2.1.9", "2.2.5", "2.3.2"],
};

/// What is known of a program's version, as it writes it. `None` too for what is no version.
#[must_use]
pub fn flaw(program: Program, version: &str) -> Option<Flaw> {
    let version = released(version.trim().trim_start_matches('v'))?;
    let Fixes { known_as, lines } = match program {
        Program::Containerd => CONTAINERD,
        Program::Runc => RUNC,
    };
    let lines = lines.iter().filter_map(|line| Version::parse(line).ok());
    let fixed_in =
        lines.into_iter().find(|line| (line.major, line.minor) >= (version.major, version.minor))?;
    (version.cmp_precedence(&fixed_in).is_lt()).then_some(Flaw { known_as, fixed_in })
}

/// The release that a version is of: what a distribution adds to it is none of upstream's, and a pre-release is what upstream calls so.
fn released(text: &str) -> Option<Version> {
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let mut version = Version::parse(&text[..end]).ok()?;
    let pre = text[end..].strip_prefix('-').unwrap_or_default();
    let pre = pre.split(['~', '+', '-']).next().unwrap_or_default();
    if ["rc", "beta", "alpha"].iter().any(|stage| pre.starts_with(stage)) {
        version.pre = Prerelease::new(pre).ok()?;
    }
    Some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixed_in(program: Program, version: &str) -> Option<String> {
        flaw(program, version).map(|flaw| flaw.fixed_in.to_string())
    }

    #[test]
    fn cve_2025_31133_cve_2025_52565_cve_2025_52881_a_runc_that_is_too_old_is_known() {
        for (version, expected) in [
            ("1.0.0-rc93", Some("1.2.8")),
            ("1.1.5+ds1", Some("1.2.8")),
            ("1.2.7", Some("1.2.8")),
            ("1.1.12-0ubuntu2~22.04.1", Some("1.2.8")),
            ("1.3.3-0ubuntu1", None),
            ("1.3.2-0ubuntu1", Some("1.3.3")),
            ("1.2.8", None),
            ("1.2.10", None),
            ("1.3.0", Some("1.3.3")),
            ("1.3.2", Some("1.3.3")),
            ("1.3.3", None),
            ("1.4.0-rc.2", Some("1.4.0-rc.3")),
            ("1.4.0-rc.3", None),
            ("1.4.0", None),
            ("1.5.2", None),
            ("2.0.0", None),
            ("unknown", None),
            ("", None),
        ] {
            assert_eq!(fixed_in(Program::Runc, version).as_deref(), expected, "{version}");
        }
    }

    /// 2.1.0 alone has another one, by which layers were unpacked beside a container.
    #[test]
    fn cve_2021_32760_cve_2025_47290_a_containerd_that_unpacks_elsewhere_is_known() {
        for (version, expected) in [
            ("v2.1.0", Some("2.1.9")),
            ("2.1.8", Some("2.1.9")),
            ("2.1.9", None),
            ("2.0.0-rc.1+unknown", Some("2.0.10")),
            ("1.7.30", Some("2.0.10")),
            ("1.7.24~ds1", Some("2.0.10")),
            ("2.1.3-0ubuntu3~24.04.1", Some("2.1.9")),
            ("v2.2.5", None),
            ("v2.3.1", Some("2.3.2")),
            ("v2.4.0-beta.0", None),
            ("v2.4.2", None),
            ("dev", None),
        ] {
            assert_eq!(fixed_in(Program::Containerd, version).as_deref(), expected, "{version}");
        }
    }

    #[test]
    fn every_line_is_a_version_and_they_are_in_order() {
        for Fixes { lines, .. } in [RUNC, CONTAINERD] {
            let versions: Vec<_> = lines.iter().map(|line| Version::parse(line).unwrap()).collect();
            assert!(versions.is_sorted(), "{versions:?}");
        }
    }
}
