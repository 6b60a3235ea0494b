//! How the server speaks TLS, by the names of Go. Source: `k8s.io/component-base/cli/flag/{ciphersuites_flag,curves_flag}.go`.

use tokio_rustls::rustls::{CipherSuite, NamedGroup};

use super::{KubeletConfiguration, Settings};
use crate::document::{Fault, Node};

/// Suites of TLS 1.2 that there are, by all their names.
const SUITES: [(&str, CipherSuite); 8] = [
    ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
    ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305", CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    (
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
    ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
    ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305", CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
];

/// Those of TLS 1.3, among which nobody can choose, as in Go.
const SUITES_OF_1_3: [&str; 3] =
    ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"];

/// Those that Go has beside them: with CBC, RC4, 3DES, or without forward secrecy.
const SUITES_OF_GO: [&str; 16] = [
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_RSA_WITH_RC4_128_SHA",
];

/// Key exchanges that there are.
const GROUPS: [(i32, NamedGroup); 3] =
    [(23, NamedGroup::secp256r1), (24, NamedGroup::secp384r1), (29, NamedGroup::X25519)];

/// Those that Go has beside them: P-521, and those that are to withstand quantum computers.
const GROUPS_OF_GO: [i32; 4] = [25, 4587, 4588, 4589];

/// The oldest version that is spoken (`tlsMinVersion`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsVersion {
    /// 1.2.
    Tls12,
    /// 1.3.
    Tls13,
}

/// How TLS is spoken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsSettings {
    /// The oldest version.
    pub least: TlsVersion,
    /// Suites of TLS 1.2; all that there are where this is `None`.
    pub suites: Option<Vec<CipherSuite>>,
    /// Key exchanges; all that there are where this is `None`.
    pub groups: Option<Vec<NamedGroup>>,
}

/// What is wrong with the settings of TLS. What Go has and we have not is left out of a list as long as something is left.
pub(super) fn check(kubelet: &KubeletConfiguration, tree: &Node) -> Vec<Fault> {
    let mut faults = Vec::new();
    match kubelet.tls_min_version.as_deref().unwrap_or_default() {
        "" | "VersionTLS12" | "VersionTLS13" => {}
        old @ ("VersionTLS10" | "VersionTLS11") => {
            let why = format!("`{old}` is no longer spoken: `VersionTLS12` and `VersionTLS13` are");
            faults.push(tree.fault("tlsMinVersion", why));
        }
        other => {
            let why = format!("`{other}` is not one of `VersionTLS12`, `VersionTLS13`");
            faults.push(tree.fault("tlsMinVersion", why));
        }
    }
    suites_faults(kubelet, tree, &mut faults);
    groups_faults(kubelet, tree, &mut faults);
    faults
}

fn suites_faults(kubelet: &KubeletConfiguration, tree: &Node, faults: &mut Vec<Fault>) {
    let names = kubelet.tls_cipher_suites.as_deref().unwrap_or_default();
    let is_offered = |name: &str| suite(name).is_some() || SUITES_OF_1_3.contains(&name);
    let there_are = || {
        let names = SUITES.iter().map(|(name, _)| *name).chain(SUITES_OF_1_3);
        names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
    };
    for (index, name) in names.iter().enumerate() {
        if !is_offered(name) && !SUITES_OF_GO.contains(&name.as_str()) {
            let why = format!("`{name}` is no cipher suite. There are {}", there_are());
            faults.push(tree.fault(&format!("tlsCipherSuites[{index}]"), why));
        }
    }
    if !names.is_empty() && !names.iter().any(|name| is_offered(name)) {
        let why = format!("none of them is there. There are {}", there_are());
        faults.push(tree.fault("tlsCipherSuites", why));
    }
}

fn groups_faults(kubelet: &KubeletConfiguration, tree: &Node, faults: &mut Vec<Fault>) {
    const THERE_ARE: &str = "There are 23 (P-256), 24 (P-384) and 29 (X25519)";
    let ids = kubelet.tls_curve_preferences.as_deref().unwrap_or_default();
    for (index, id) in ids.iter().enumerate() {
        let why = if ids.iter().take(index).any(|before| before == id) {
            format!("{id} is given twice")
        } else if group(*id).is_none() && !GROUPS_OF_GO.contains(id) {
            format!("{id} is no key exchange. {THERE_ARE}")
        } else {
            continue;
        };
        faults.push(tree.fault(&format!("tlsCurvePreferences[{index}]"), why));
    }
    if !ids.is_empty() && !ids.iter().any(|id| group(*id).is_some()) {
        faults.push(tree.fault("tlsCurvePreferences", format!("none of them is there. {THERE_ARE}")));
    }
}

/// Of settings that were checked.
pub(super) fn settings(kubelet: &KubeletConfiguration) -> TlsSettings {
    let given = kubelet.tls_cipher_suites.as_deref().filter(|names| !names.is_empty());
    let ids = kubelet.tls_curve_preferences.as_deref().filter(|ids| !ids.is_empty());
    TlsSettings {
        least: match kubelet.tls_min_version.as_deref() {
            Some("VersionTLS13") => TlsVersion::Tls13,
            _ => TlsVersion::Tls12,
        },
        suites: given.map(|names| names.iter().filter_map(|name| suite(name)).collect()),
        groups: ids.map(|ids| ids.iter().filter_map(|id| group(*id)).collect()),
    }
}

fn suite(name: &str) -> Option<CipherSuite> {
    SUITES.iter().find(|(known, _)| *known == name).map(|(_, suite)| *suite)
}

fn group(id: i32) -> Option<NamedGroup> {
    GROUPS.iter().find(|(known, _)| *known == id).map(|(_, group)| *group)
}

impl Settings {
    /// What of `tlsCipherSuites` and `tlsCurvePreferences` Go has and we have not, and that is left out.
    #[must_use]
    pub fn left_out_of_tls(&self) -> Vec<String> {
        let names = self.kubelet.tls_cipher_suites.iter().flatten();
        let ids = self.kubelet.tls_curve_preferences.iter().flatten();
        let names = names.filter(|name| SUITES_OF_GO.contains(&name.as_str())).cloned();
        names.chain(ids.filter(|id| GROUPS_OF_GO.contains(id)).map(ToString::to_string)).collect()
    }
}
