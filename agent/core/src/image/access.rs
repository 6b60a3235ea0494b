//! Which pods may have an image that is on the node: one that was pulled with a pod's secrets is not for pods that could not pull it.
//!
//! Source: `pkg/kubelet/images/pullmanager` (KEP-2535), `image_pull_policies.go` and `MustAttemptImagePull` of `image_pull_manager.go`.

use std::collections::BTreeSet;

use thiserror::Error;

use super::name;

/// Most secrets that an image is known to come with beside which one that only fits is kept, and beside which a secret fits by its place
/// (`writeRecordWhileMatchingLimit`).
const FITTING_MAX: usize = 100;

/// Which images ask for credentials though they are on the node (`imagePullCredentialsVerificationPolicy`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Verification {
    /// `NeverVerify`: none.
    Never,
    /// `NeverVerifyPreloadedImages`: those that were pulled here.
    #[default]
    Pulled,
    /// `NeverVerifyAllowlistedImages`: all but these.
    Unlisted(Allowlist),
    /// `AlwaysVerify`: all.
    Always,
}

impl Verification {
    fn asks(&self, image: &str, was_pulled: bool) -> bool {
        match self {
            Self::Never => false,
            Self::Pulled => was_pulled,
            Self::Unlisted(allowed) => !allowed.has(image),
            Self::Always => true,
        }
    }
}

/// Images that every pod may have once they are here (`preloadedImagesVerificationAllowlist`), as pods write them: nothing is normalised.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allowlist {
    names: BTreeSet<String>,
    /// Each ends in `/`.
    prefixes: Vec<String>,
}

/// Why a pattern names no images.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum InvalidPattern {
    /// It begins or ends with a blank.
    #[error("leading/trailing spaces are not allowed")]
    Blanks,
    /// It is empty.
    #[error("the supplied pattern is too short")]
    Empty,
    /// It has a star elsewhere.
    #[error("not a valid wildcard pattern, only patterns ending with '/*' are allowed")]
    Star,
    /// It is `/*`.
    #[error("at least registry hostname is required")]
    NoRegistry,
    /// It is no name of an image.
    #[error("failed to parse as an image name: {0}")]
    NoName(String),
    /// It is the name of one image.
    #[error("neither tag nor digest is accepted in an image reference")]
    Tagged,
}

impl Allowlist {
    /// Takes one more pattern: a name without tag and digest, or the start of one with `/*` behind it.
    ///
    /// # Errors
    ///
    /// When it is none of both.
    pub fn add(&mut self, pattern: &str) -> Result<(), InvalidPattern> {
        if pattern != pattern.trim() {
            return Err(InvalidPattern::Blanks);
        }
        let prefix = pattern.strip_suffix('*').filter(|prefix| prefix.ends_with('/'));
        let text = prefix.unwrap_or(pattern);
        if text.is_empty() {
            return Err(InvalidPattern::Empty);
        }
        if text.contains('*') {
            return Err(InvalidPattern::Star);
        }
        match prefix {
            Some("/") => return Err(InvalidPattern::NoRegistry),
            Some(prefix) => self.prefixes.push(prefix.to_owned()),
            None => {
                let bare = name::bare(text).map_err(|error| InvalidPattern::NoName(error.why))?;
                if bare != text {
                    return Err(InvalidPattern::Tagged);
                }
                self.names.insert(text.to_owned());
            }
        }
        Ok(())
    }

    fn has(&self, image: &str) -> bool {
        let bare = name::bare(image).unwrap_or(image);
        self.names.contains(bare) || self.prefixes.iter().any(|prefix| bare.starts_with(prefix))
    }
}

/// A secret that an image was pulled with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PullSecret {
    /// Its UID.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Hash of the credential: nothing of it can be had from that. Empty where there is none.
    pub credential_hash: String,
}

impl PullSecret {
    /// Whether both are the same secret, whatever is in it.
    #[must_use]
    pub fn has_place_of(&self, other: &Self) -> bool {
        (&self.uid, &self.namespace, &self.name) == (&other.uid, &other.namespace, &other.name)
    }

    fn has_credential_of(&self, other: &Self) -> bool {
        !self.credential_hash.is_empty() && self.credential_hash == other.credential_hash
    }
}

/// What is written of how an image came to the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Nothing: somebody else brought it.
    Preloaded,
    /// That a pull of its name was begun, and no more.
    Begun,
    /// It was pulled; who may have it by the name that is asked for.
    Pulled(Access),
    /// Something that cannot be read.
    Unreadable,
}

/// Who may have an image that is on the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// Every pod.
    All,
    /// Who has one of these.
    With(Vec<PullSecret>),
    /// Who can pull it.
    Nobody,
}

/// Whether a pod may have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict<'a> {
    /// It has to pull it.
    Refused,
    /// It may.
    Allowed,
    /// It may by a secret that is not known as it is now. Once it is, it allows the image by itself, whatever becomes of the one that it is
    /// like.
    Fits(&'a PullSecret),
}

/// Who may have an image, whose name is as the pod has it.
#[must_use]
pub fn access(verification: &Verification, image: &str, origin: Origin) -> Access {
    let was_pulled = match origin {
        Origin::Unreadable => return Access::Nobody,
        Origin::Preloaded => false,
        Origin::Begun | Origin::Pulled(_) => true,
    };
    if !verification.asks(image, was_pulled) {
        return Access::All;
    }
    match origin {
        Origin::Pulled(access) => access,
        Origin::Preloaded | Origin::Begun | Origin::Unreadable => Access::Nobody,
    }
}

impl Access {
    /// Judges a pod by the secrets that it has for the image, in their order.
    pub fn verdict<'a>(&self, secrets: impl IntoIterator<Item = &'a PullSecret>) -> Verdict<'a> {
        let known = match self {
            Self::All => return Verdict::Allowed,
            Self::Nobody => return Verdict::Refused,
            Self::With(known) => known,
        };
        let has_room = known.len() < FITTING_MAX;
        let fits = |secret: &&PullSecret| {
            known.iter().any(|one| one.has_credential_of(secret) || has_room && one.has_place_of(secret))
        };
        match secrets.into_iter().find(fits) {
            None => Verdict::Refused,
            Some(secret) if has_room && !known.contains(secret) => Verdict::Fits(secret),
            Some(_) => Verdict::Allowed,
        }
    }
}

#[cfg(test)]
mod tests;
