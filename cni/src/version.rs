//! The versions of the CNI specification, and which of them a configuration asks for.
//!
//! The set is closed: a version that this runtime cannot speak is refused when the configuration is loaded, and not
//! after a plugin already ran, as libcni does. (libcni/conf.go `NetworkConfFromBytes`, pkg/version.)

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A version of the CNI specification that this runtime speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum SpecVersion {
    /// 0.1.0: one address per family; also what an absent version means.
    V0_1_0,
    /// 0.2.0: adds VERSION.
    V0_2_0,
    /// 0.3.0: adds interfaces and chaining.
    V0_3_0,
    /// 0.3.1: adds configuration lists.
    V0_3_1,
    /// 0.4.0: adds CHECK and `prevResult` on DEL.
    V0_4_0,
    /// 1.0.0: drops single configurations and the address version field.
    V1_0_0,
    /// 1.1.0: adds GC, STATUS and version negotiation.
    V1_1_0,
}

/// Why a version string was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VersionError {
    /// Not of the form `major.minor.patch`.
    #[error("{0:?} is not a version of the form 1.0.0")]
    Malformed(String),
    /// A version that is not in [`SpecVersion::ALL`].
    #[error("CNI version {0:?} is not supported; supported are 0.1.0 to 1.1.0")]
    Unsupported(String),
}

impl SpecVersion {
    /// Every version, oldest first.
    pub const ALL: [Self; 7] =
        [Self::V0_1_0, Self::V0_2_0, Self::V0_3_0, Self::V0_3_1, Self::V0_4_0, Self::V1_0_0, Self::V1_1_0];

    /// The newest version this runtime speaks.
    pub const NEWEST: Self = Self::V1_1_0;

    /// The version as it stands in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V0_1_0 => "0.1.0",
            Self::V0_2_0 => "0.2.0",
            Self::V0_3_0 => "0.3.0",
            Self::V0_3_1 => "0.3.1",
            Self::V0_4_0 => "0.4.0",
            Self::V1_0_0 => "1.0.0",
            Self::V1_1_0 => "1.1.0",
        }
    }

    /// CHECK, and `prevResult` on DEL, exist since 0.4.0.
    #[must_use]
    pub fn has_check(self) -> bool {
        self >= Self::V0_4_0
    }

    /// GC and STATUS exist since 1.1.0.
    #[must_use]
    pub fn has_gc_and_status(self) -> bool {
        self >= Self::V1_1_0
    }

    /// The version a configuration asks for: the newest of `cniVersions` and `cniVersion` that this runtime speaks.
    ///
    /// Entries of `offered` newer than this runtime are skipped, as the author offers older ones for us. A lone
    /// `single` has no alternative, so one that is not supported is an error. Neither means 0.1.0.
    ///
    /// # Errors
    /// A malformed version anywhere, or a choice that is not in [`SpecVersion::ALL`].
    pub fn select(single: &str, offered: Option<&[String]>) -> Result<Self, VersionError> {
        let Some(offered) = offered else { return single.parse() };
        let mut best: Option<(Triple, &str)> = None;
        for version in offered.iter().map(String::as_str).chain(Some(single).filter(|v| !v.is_empty())) {
            let triple = parse_triple(version)?;
            if triple <= NEWEST_TRIPLE && best.is_none_or(|(known, _)| triple > known) {
                best = Some((triple, version));
            }
        }
        best.map_or(single, |(_, version)| version).parse()
    }
}

impl FromStr for SpecVersion {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, VersionError> {
        if text.is_empty() {
            return Ok(Self::V0_1_0);
        }
        parse_triple(text)?;
        Self::ALL
            .into_iter()
            .find(|version| version.as_str() == text)
            .ok_or_else(|| VersionError::Unsupported(text.to_owned()))
    }
}

impl TryFrom<String> for SpecVersion {
    type Error = VersionError;

    fn try_from(text: String) -> Result<Self, VersionError> {
        text.parse()
    }
}

impl From<SpecVersion> for String {
    fn from(version: SpecVersion) -> Self {
        version.as_str().to_owned()
    }
}

impl fmt::Display for SpecVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

type Triple = (u32, u32, u32);
const NEWEST_TRIPLE: Triple = (1, 1, 0);

fn parse_triple(text: &str) -> Result<Triple, VersionError> {
    let malformed = || VersionError::Malformed(text.to_owned());
    let mut parts = [0; 3];
    for (index, part) in text.split('.').enumerate() {
        *parts.get_mut(index).ok_or_else(malformed)? = part.parse().map_err(|_not_a_number| malformed())?;
    }
    let [major, minor, patch] = parts;
    Ok((major, minor, patch))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selection_follows_libcni() {
        let unsupported = |v: &str| Err(VersionError::Unsupported(v.to_owned()));
        type Case<'a> = (&'a str, Option<&'a [&'a str]>, Result<SpecVersion, VersionError>);
        let table: [Case<'_>; 9] = [
            ("", None, Ok(SpecVersion::V0_1_0)),
            ("", Some(&["1.1.0", "0.4.0", "1.0.0"]), Ok(SpecVersion::V1_1_0)),
            ("", Some(&["99.0.0", "1.1.0", "0.4.0", "1.0.0"]), Ok(SpecVersion::V1_1_0)),
            ("", Some(&["1.1.0", "1.0.f"]), Err(VersionError::Malformed("1.0.f".into()))),
            // libcni takes 1.2.3 here and fails after the first plugin ran; we fail before.
            ("1.2.3", None, unsupported("1.2.3")),
            ("1.0.0", Some(&["0.1.0", "0.4.0"]), Ok(SpecVersion::V1_0_0)),
            ("", Some(&[]), Ok(SpecVersion::V0_1_0)),
            ("2.0.0", Some(&["1.0.0"]), Ok(SpecVersion::V1_0_0)),
            ("1.0.0.0", None, Err(VersionError::Malformed("1.0.0.0".into()))),
        ];
        for (single, offered, expected) in table {
            let offered = offered.map(|list| list.iter().map(|v| (*v).to_owned()).collect::<Vec<_>>());
            assert_eq!(SpecVersion::select(single, offered.as_deref()), expected, "{single:?} {offered:?}");
        }
    }

    #[test]
    fn verbs_appear_with_their_versions() {
        assert!(!SpecVersion::V0_3_1.has_check());
        assert!(SpecVersion::V0_4_0.has_check());
        assert!(!SpecVersion::V1_0_0.has_gc_and_status());
        assert!(SpecVersion::V1_1_0.has_gc_and_status());
    }
}
