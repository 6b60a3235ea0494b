//! Which of the manifests of an index is for a machine.
//!
//! Source: `github.com/containerd/platforms`, `Only` of `compare.go` and `normalizeArch` of `database.go`, which containerd's CRI goes by
//! (`platforms.Default`).

/// A platform as an image names it. What is empty is not named.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Platform {
    /// Operating system: `linux`.
    pub os: String,
    /// Architecture in Go's words: `amd64`.
    pub architecture: String,
    /// Which of the architecture: `v8`.
    pub variant: String,
}

/// The platforms whose images run on a Linux machine of an architecture, best first.
#[must_use]
pub fn runs_on(architecture: &str) -> Vec<Platform> {
    let of = |architecture: &str, variant: &str| Platform {
        os: "linux".to_owned(),
        architecture: architecture.to_owned(),
        variant: variant.to_owned(),
    };
    let (architecture, variant) = normalized(architecture, "");
    match architecture.as_str() {
        "amd64" => vec![of("amd64", ""), of("386", "")],
        "arm64" => {
            let narrow = ["v8", "v7", "v6", "v5"].map(|variant| of("arm", variant));
            std::iter::once(of("arm64", "")).chain(narrow).collect()
        }
        other => vec![of(other, &variant)],
    }
}

/// How well an image's platform fits a machine of an architecture, 0 the best; `None` where it does not.
#[must_use]
pub fn rank(machine: &str, platform: &Platform) -> Option<usize> {
    let (architecture, variant) = normalized(&platform.architecture, &platform.variant);
    let os = if platform.os.is_empty() { "linux".to_owned() } else { platform.os.to_lowercase() };
    let platform = Platform { os, architecture, variant };
    runs_on(machine).iter().position(|one| *one == platform)
}

/// Architecture and variant by the names that everybody means. The usual variant is none, but of `arm`.
fn normalized(architecture: &str, variant: &str) -> (String, String) {
    let (architecture, variant) = (architecture.to_lowercase(), variant.to_lowercase());
    let (architecture, variant) = match (architecture.as_str(), variant.as_str()) {
        ("i386", _) => ("386", ""),
        ("x86_64" | "x86-64" | "amd64", "v1") => ("amd64", ""),
        ("x86_64" | "x86-64", variant) => ("amd64", variant),
        ("aarch64" | "arm64", "8" | "v8" | "v8.0") => ("arm64", ""),
        ("aarch64" | "arm64", "9" | "9.0" | "v9.0") => ("arm64", "v9"),
        ("aarch64", variant) => ("arm64", variant),
        ("armhf", _) | ("arm", "" | "7") => ("arm", "v7"),
        ("armel", _) | ("arm", "6") => ("arm", "v6"),
        ("arm", "5") => ("arm", "v5"),
        ("arm", "8") => ("arm", "v8"),
        same => same,
    };
    (architecture.to_owned(), variant.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn platforms_fit_as_by_containerd() {
        for (machine, os, architecture, variant, expected) in [
            ("amd64", "linux", "amd64", "", Some(0)),
            ("amd64", "Linux", "x86_64", "", Some(0)),
            ("amd64", "", "amd64", "", Some(0)),
            ("amd64", "linux", "amd64", "v1", Some(0)),
            ("amd64", "linux", "amd64", "v2", None),
            ("amd64", "linux", "x86-64", "v3", None),
            ("amd64", "linux", "386", "", Some(1)),
            ("amd64", "linux", "i386", "i686", Some(1)),
            ("amd64", "linux", "386", "softfloat", None),
            ("amd64", "linux", "arm64", "v8", None),
            ("amd64", "windows", "amd64", "", None),
            ("amd64", "unknown", "unknown", "", None),
            ("amd64", "linux", "", "", None),
            ("arm64", "linux", "arm64", "", Some(0)),
            ("arm64", "linux", "aarch64", "8", Some(0)),
            ("arm64", "linux", "arm64", "v8.0", Some(0)),
            ("arm64", "linux", "arm64", "v8.1", None),
            ("arm64", "linux", "arm64", "9", None),
            ("arm64", "linux", "arm", "8", Some(1)),
            ("arm64", "linux", "arm", "", Some(2)),
            ("arm64", "linux", "armhf", "", Some(2)),
            ("arm64", "linux", "armel", "", Some(3)),
            ("arm64", "linux", "arm", "6", Some(3)),
            ("arm64", "linux", "arm", "5", Some(4)),
            ("arm64", "linux", "amd64", "", None),
            ("riscv64", "linux", "riscv64", "", Some(0)),
            ("riscv64", "linux", "amd64", "", None),
        ] {
            let platform =
                Platform { os: os.into(), architecture: architecture.into(), variant: variant.into() };
            assert_eq!(rank(machine, &platform), expected, "{platform:?} on {machine}");
        }
    }

    #[test]
    fn a_machine_runs_what_is_asked_of_registries_for_it() {
        for machine in ["amd64", "arm64", "riscv64"] {
            for (index, platform) in runs_on(machine).iter().enumerate() {
                assert_eq!(rank(machine, platform), Some(index), "{platform:?} on {machine}");
            }
        }
    }
}
