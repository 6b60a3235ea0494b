//! The names that CNI passes around, as types that only hold valid ones.
//!
//! Every name ends up in a file name, an environment variable or a program path, so the rules are those of libcni's
//! `pkg/utils` plus a length that keeps cache file names below the kernel's 255 bytes.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Longest network name, in bytes.
pub const NETWORK_NAME_MAX: usize = 128;
/// Longest container id, in bytes.
pub const CONTAINER_ID_MAX: usize = 100;
/// Longest interface name, in bytes: IFNAMSIZ less the final NUL.
pub const INTERFACE_NAME_MAX: usize = 15;
/// Longest plugin type, in bytes: a file name.
pub const PLUGIN_TYPE_MAX: usize = 255;

/// Why a name was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The name is missing.
    #[error("{what} is empty")]
    Empty {
        /// What is named.
        what: &'static str,
    },
    /// The name is too long.
    #[error("{what} {value:?} is longer than {max} bytes")]
    TooLong {
        /// What is named.
        what: &'static str,
        /// The refused name.
        value: String,
        /// The longest allowed.
        max: usize,
    },
    /// The name has characters that are not allowed, or is `.` or `..`.
    #[error("{what} {value:?} is not allowed: {rule}")]
    Forbidden {
        /// What is named.
        what: &'static str,
        /// The refused name.
        value: String,
        /// The rule it breaks.
        rule: &'static str,
    },
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident, $what:literal, $max:expr, $allowed:path, $rule:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            #[doc = concat!("Takes a valid ", $what, ".")]
            ///
            /// # Errors
            /// The name is empty, too long, or breaks its rule.
            pub fn new(value: impl Into<String>) -> Result<Self, NameError> {
                let value = value.into();
                if value.is_empty() {
                    Err(NameError::Empty { what: $what })
                } else if value.len() > $max {
                    Err(NameError::TooLong { what: $what, value, max: $max })
                } else if !$allowed(&value) {
                    Err(NameError::Forbidden { what: $what, value, rule: $rule })
                } else {
                    Ok(Self(value))
                }
            }

            /// The name.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;

            fn try_from(value: String) -> Result<Self, NameError> {
                Self::new(value)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0
            }
        }

        impl std::str::FromStr for $name {
            type Err = NameError;

            fn from_str(value: &str) -> Result<Self, NameError> {
                Self::new(value)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name_type!(
    /// The name of a network: unique on a node, part of cache file names.
    NetworkName,
    "network name",
    NETWORK_NAME_MAX,
    is_identifier,
    "only letters, digits, '_', '.', '-', beginning with a letter or digit"
);

name_type!(
    /// The id of what is attached: for pods, the sandbox id.
    ContainerId,
    "container id",
    CONTAINER_ID_MAX,
    is_identifier,
    "only letters, digits, '_', '.', '-', beginning with a letter or digit"
);

name_type!(
    /// The name of an interface inside the container.
    InterfaceName,
    "interface name",
    INTERFACE_NAME_MAX,
    is_interface,
    "not '.' or '..', no '/', ':', white space or control characters"
);

name_type!(
    /// The file name of a plugin. It never leaves the plugin directories (CVE-2021-20206).
    PluginType,
    "plugin type",
    PLUGIN_TYPE_MAX,
    is_file_name,
    "a file name without '/', '..' or control characters"
);

fn is_identifier(value: &str) -> bool {
    value.starts_with(|c: char| c.is_ascii_alphanumeric())
        && value.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'))
}

fn is_interface(value: &str) -> bool {
    !matches!(value, "." | "..")
        && !value.chars().any(|c| matches!(c, '/' | ':') || c.is_whitespace() || c.is_control())
}

fn is_file_name(value: &str) -> bool {
    value != "." && !value.contains("..") && !value.chars().any(|c| c == '/' || c.is_control())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_names() {
        let long = "x".repeat(INTERFACE_NAME_MAX + 1);
        for bad in ["", ".", "..", "a/b", "a:b", "a b", "a\tb", "a\u{a0}b", "a\0b", long.as_str()] {
            assert!(InterfaceName::new(bad).is_err(), "{bad:?}");
        }
        for good in ["eth0", "net1.100", "lo", "abcdefghijklmno", "a-b_c@d"] {
            assert_eq!(InterfaceName::new(good).unwrap().as_str(), good);
        }
    }

    #[test]
    fn identifiers() {
        let long = "x".repeat(CONTAINER_ID_MAX + 1);
        for bad in ["", "-a", ".a", "_a", "a/b", "a b", "a;b", "../a", "ä", "a\n", long.as_str()] {
            assert!(ContainerId::new(bad).is_err(), "{bad:?}");
            assert!(NetworkName::new(bad).is_err() || bad.len() <= NETWORK_NAME_MAX, "{bad:?}");
        }
        for good in ["a", "0", "a.b_c-d", "some-list"] {
            assert!(ContainerId::new(good).is_ok() && NetworkName::new(good).is_ok(), "{good:?}");
        }
        NetworkName::new("a/b").unwrap_err();
    }

    #[test]
    fn cve_2021_20206_plugin_type_stays_in_its_directory() {
        for bad in ["../sh", "../../../bin/sh", "/bin/sh", "a/b", "..", ".", "a..b/..", "", "a\0"] {
            assert!(PluginType::new(bad).is_err(), "{bad:?}");
        }
        for good in ["bridge", "host-local", "cilium-cni", "my.plugin"] {
            assert!(PluginType::new(good).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn errors_name_the_value_and_the_rule() {
        let error = ContainerId::new("a b").unwrap_err();
        assert_eq!(
            error.to_string(),
            "container id \"a b\" is not allowed: only letters, digits, '_', '.', '-', \
             beginning with a letter or digit"
        );
    }
}
