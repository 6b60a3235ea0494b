//! Names of images.
//!
//! Source: `github.com/distribution/reference` (`normalize.go`, `regexp.go`), which the kubelet and containerd use. The
//! grammar is checked by hand, in one pass over each part, with every length bounded.

use std::fmt;

use thiserror::Error;

const DEFAULT_DOMAIN: &str = "docker.io";
const LEGACY_DOMAIN: &str = "index.docker.io";
const OFFICIAL: &str = "library/";
const DEFAULT_TAG: &str = "latest";
/// Longest repository path (`RepositoryNameTotalLengthMax`), and longest domain.
const PART_BYTES_MAX: usize = 255;
const TAG_BYTES_MAX: usize = 128;

/// Why a text is no image name: `InvalidImageName`.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("couldn't parse image name {text:?}: {why}")]
pub struct InvalidImageName {
    /// The text, cut when it is long.
    pub text: String,
    /// What is wrong with it.
    pub why: String,
}

/// An image name with everything written out.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ImageName {
    /// Registry, with a port when there is one: `docker.io`.
    pub domain: String,
    /// Path within the registry: `library/busybox`.
    pub path: String,
    /// Tag, as written.
    pub tag: Option<String>,
    /// `algorithm:hex`, as written.
    pub digest: Option<String>,
}

impl ImageName {
    /// Registry and path: `docker.io/library/busybox`.
    #[must_use]
    pub fn repository(&self) -> String {
        format!("{}/{}", self.domain, self.path)
    }

    /// Whether the name can mean another image tomorrow.
    #[must_use]
    pub fn is_movable(&self) -> bool {
        self.digest.is_none()
    }
}

/// The name that images are kept under: with the digest when there is one, else with the tag, else with `latest`.
/// Source: `reference.ParseDockerRef`.
impl fmt::Display for ImageName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.domain, self.path)?;
        match (&self.digest, &self.tag) {
            (Some(digest), _) => write!(out, "@{digest}"),
            (None, Some(tag)) => write!(out, ":{tag}"),
            (None, None) => write!(out, ":{DEFAULT_TAG}"),
        }
    }
}

/// Reads a name as people write it: `busybox`, `user/app:1.2`, `registry:5000/app@sha256:…`.
///
/// # Errors
///
/// When it is no name of an image.
pub fn parse(text: &str) -> Result<ImageName, InvalidImageName> {
    parts(text).map_err(|why| InvalidImageName { text: shown(text).to_owned(), why })
}

/// The name of the record that says what a text means: an id is its own (`LocalResolve` of containerd's
/// `internal/cri/server/images/service.go`).
///
/// # Errors
///
/// When it is no name of an image.
pub fn kept_under(text: &str) -> Result<String, InvalidImageName> {
    if is_digest(text) { Ok(text.to_owned()) } else { parse(text).map(|name| name.to_string()) }
}

/// A name as it is written, without tag and digest. Source: `trimImageTagDigest` of
/// `pkg/kubelet/images/pullmanager/image_pull_policies.go`.
///
/// # Errors
///
/// When it is no name of an image.
pub fn bare(text: &str) -> Result<&str, InvalidImageName> {
    let ImageName { tag, digest, .. } = parse(text)?;
    let cut = |text: &'_ str, length: Option<usize>| text.len() - length.map_or(0, |length| length + 1);
    let text = &text[..cut(text, digest.map(|digest| digest.len()))];
    Ok(&text[..cut(text, tag.map(|tag| tag.len()))])
}

/// The tag and the `repository@digest` that a container status shows of an image with these names: of each the first in order,
/// whichever the pod asked for. Image ids are among the names, and are neither.
/// Source: containerd, `internal/cri/server/container_status.go` `ContainerStatus`; `github.com/distribution/reference`
/// `Sort`.
pub fn shown_of<'n>(names: impl IntoIterator<Item = &'n str>) -> (Option<String>, Option<String>) {
    let (mut tags, mut digests) = (Vec::new(), Vec::new());
    for name in names.into_iter().filter(|name| !is_digest(name)) {
        let Ok(name) = parse(name) else { continue };
        let repository = name.repository();
        match (&name.tag, &name.digest) {
            (Some(tag), Some(digest)) => digests.push((0, format!("{repository}:{tag}@{digest}"))),
            (None, Some(digest)) => digests.push((1, format!("{repository}@{digest}"))),
            (Some(tag), None) => tags.push(format!("{repository}:{tag}")),
            (None, None) => {}
        }
    }
    (tags.into_iter().min(), digests.into_iter().min().map(|(_, digest)| digest))
}

/// As much of a text as an error repeats.
fn shown(text: &str) -> &str {
    &text[..text.floor_char_boundary(2 * PART_BYTES_MAX)]
}

fn parts(text: &str) -> Result<ImageName, String> {
    if text.len() == 64 && text.bytes().all(is_hex) {
        return Err(format!("invalid repository name ({text}), cannot specify 64-byte hexadecimal strings"));
    }
    let (domain, rest) = split_domain(text);
    let (rest, digest) = match rest.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (rest, None),
    };
    let (path, tag) = match rest.split_once(':') {
        Some((path, tag)) => (path, Some(tag)),
        None => (rest, None),
    };
    // A familiar name is one of Docker's own images.
    let path = if domain == DEFAULT_DOMAIN && !path.contains('/') {
        format!("{OFFICIAL}{path}")
    } else {
        path.to_owned()
    };
    // Without a tag, the algorithm of a digest is taken for a part of it.
    let remote = match (tag, digest.and_then(|digest| digest.split_once(':'))) {
        (None, Some((algorithm, _))) => format!("{path}@{algorithm}"),
        (Some(_), _) | (None, None) => path.clone(),
    };
    if remote.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Err(format!(
            "invalid reference format: repository name ({}) must be lowercase",
            shown(&remote)
        ));
    }
    if path.len() > PART_BYTES_MAX || domain.len() > PART_BYTES_MAX {
        return Err("repository name must not be more than 255 characters".to_owned());
    }
    let valid = is_domain(domain)
        && path.split('/').all(is_path_component)
        && tag.is_none_or(is_tag)
        && digest.is_none_or(is_like_digest);
    if !valid {
        return Err("invalid reference format".to_owned());
    }
    if let Some(why) = digest.and_then(|digest| digest_fault(digest).err()) {
        return Err(why.to_owned());
    }
    Ok(ImageName {
        domain: domain.to_owned(),
        path,
        tag: tag.map(str::to_owned),
        digest: digest.map(str::to_owned),
    })
}

/// The first part is a registry when it looks like one: with a dot, a port or upper case, or `localhost`.
fn split_domain(text: &str) -> (&str, &str) {
    match text.split_once('/') {
        Some((LEGACY_DOMAIN, rest)) => (DEFAULT_DOMAIN, rest),
        Some((first, rest))
            if first == "localhost"
                || first.contains(['.', ':'])
                || first.bytes().any(|byte| byte.is_ascii_uppercase()) =>
        {
            (first, rest)
        }
        Some(_) | None => (DEFAULT_DOMAIN, text),
    }
}

/// A host name, an IPv4 address, or an IPv6 address in brackets; and a port.
fn is_domain(domain: &str) -> bool {
    let (host, port) = match domain.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, port)) => {
            let valid =
                !address.is_empty() && address.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b':');
            return valid && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port));
        }
        None => domain.split_once(':').map_or((domain, None), |(host, port)| (host, Some(port))),
    };
    host.split('.').all(is_host_label) && port.is_none_or(is_port)
}

fn is_host_label(label: &str) -> bool {
    let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = label.as_bytes();
    edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-')
}

fn is_port(port: &str) -> bool {
    !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())
}

/// Lower-case letters and digits, joined by one dot, one or two underscores, or any number of dashes.
fn is_path_component(component: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = component.as_bytes();
    let edges =
        bytes.first().is_some_and(|byte| letter(*byte)) && bytes.last().is_some_and(|byte| letter(*byte));
    let mut separators =
        component.split(|character: char| character.is_ascii_lowercase() || character.is_ascii_digit());
    edges
        && separators.all(|one| matches!(one, "" | "." | "_" | "__") || one.bytes().all(|byte| byte == b'-'))
}

fn is_tag(tag: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let bytes = tag.as_bytes();
    bytes.len() <= TAG_BYTES_MAX
        && bytes.first().is_some_and(|byte| word(*byte))
        && bytes.iter().all(|byte| word(*byte) || matches!(byte, b'.' | b'-'))
}

/// A digest of an algorithm that image stores know.
#[must_use]
pub fn is_digest(text: &str) -> bool {
    digest_fault(text).is_ok()
}

/// What a name takes for a digest (`digestPat` of `regexp.go`), whatever is wrong with it: words with single separators, and 32 hexadecimal
/// digits or more.
fn is_like_digest(digest: &str) -> bool {
    let is_word = |word: &str| {
        word.starts_with(|first: char| first.is_ascii_alphabetic())
            && word.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    digest.split_once(':').is_some_and(|(algorithm, digits)| {
        algorithm.split(['-', '_', '+', '.']).all(is_word)
            && digits.len() >= 32
            && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

/// Why a digest is none. Source: `Validate` of `github.com/opencontainers/go-digest`.
fn digest_fault(digest: &str) -> Result<(), &'static str> {
    const FORMAT: &str = "invalid checksum digest format";
    let (algorithm, digits) = digest.split_once(':').ok_or(FORMAT)?;
    let length = match algorithm {
        "sha256" => 64,
        "sha384" => 96,
        "sha512" => 128,
        other if other.bytes().any(|byte| byte.is_ascii_uppercase()) => return Err(FORMAT),
        _ => return Err("unsupported digest algorithm"),
    };
    if digits.len() != length {
        return Err("invalid checksum digest length");
    }
    if digits.bytes().all(is_hex) { Ok(()) } else { Err(FORMAT) }
}

fn is_hex(byte: u8) -> bool {
    byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)
}

#[cfg(test)]
mod tests;
