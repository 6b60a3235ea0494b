//! The path of a request, with one meaning.
//!
//! Go's server cleans a path and sends who asked to the clean one; here a path that would have to be cleaned is none, so that what is
//! authorized and what is answered can never be two things.

use super::percent;

/// Bytes of a path. Names in it have 253 at most, and a file below the log directory has 4096.
pub const PATH_MAX: usize = 8 << 10;

/// What is between the slashes, decoded once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Path {
    pub(super) segments: Vec<String>,
    /// Whether it ends with a slash.
    pub(super) is_directory: bool,
}

/// Why a path has no meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unclear {
    /// It cannot be decoded, or has characters that no name has.
    Malformed,
    /// It could be written otherwise: an empty segment, `.`, `..`, an encoded slash.
    Unclean,
    /// It is longer than any.
    TooLong,
}

impl Path {
    /// Reads a path as it was sent.
    pub(super) fn parse(raw: &str) -> Result<Self, Unclear> {
        if raw.len() > PATH_MAX {
            return Err(Unclear::TooLong);
        }
        let below = raw.strip_prefix('/').ok_or(Unclear::Malformed)?;
        let (below, is_directory) = match below.strip_suffix('/') {
            Some(below) => (below, true),
            None => (below, below.is_empty()),
        };
        if below.is_empty() {
            let is_root = raw == "/";
            return if is_root {
                Ok(Self { segments: Vec::new(), is_directory })
            } else {
                Err(Unclear::Unclean)
            };
        }
        let segments = below.split('/').map(segment).collect::<Result<_, _>>()?;
        Ok(Self { segments, is_directory })
    }
}

fn segment(raw: &str) -> Result<String, Unclear> {
    let bytes = percent::decoded(raw).ok_or(Unclear::Malformed)?;
    let decoded = String::from_utf8(bytes).map_err(|_not_utf8| Unclear::Malformed)?;
    if decoded.chars().any(char::is_control) {
        return Err(Unclear::Malformed);
    }
    match decoded.as_str() {
        "" | "." | ".." => Err(Unclear::Unclean),
        text if text.contains('/') => Err(Unclear::Unclean),
        _ => Ok(decoded),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_one_meaning_or_none() {
        for (raw, segments, is_directory) in [
            ("/", &[][..], true),
            ("/pods", &["pods"], false),
            ("/pods/", &["pods"], true),
            ("/a/b%20c/%65", &["a", "b c", "e"], false),
            ("/a/%252e%252e", &["a", "%2e%2e"], false),
            ("/a/...", &["a", "..."], false),
            ("/a/%E2%82%AC", &["a", "€"], false),
            (r"/a/..\b", &["a", r"..\b"], false),
        ] {
            let segments = segments.iter().map(|&segment| segment.to_owned()).collect();
            assert_eq!(Path::parse(raw), Ok(Path { segments, is_directory }), "{raw}");
        }
        for raw in [
            "//",
            "//pods",
            "/pods//",
            "/a//b",
            "/./pods",
            "/a/.",
            "/a/./",
            "/a/..",
            "/../pods",
            "/a/%2e%2e/b",
            "/a/%2E",
            "/a%2fb",
            "/a/b%2F",
            "/%2f",
        ] {
            assert_eq!(Path::parse(raw), Err(Unclear::Unclean), "{raw}");
        }
        for raw in [
            "",
            "*",
            "pods",
            "/a%",
            "/a%4",
            "/a%4g",
            "/a%+4",
            "/a%00",
            "/a%0a",
            "/a%7f",
            "/a%ff",
            "/%c0%ae%c0%ae",
        ] {
            assert_eq!(Path::parse(raw), Err(Unclear::Malformed), "{raw}");
        }
        let long = format!("/{}", "a".repeat(PATH_MAX));
        assert_eq!(Path::parse(&long), Err(Unclear::TooLong));
    }
}
