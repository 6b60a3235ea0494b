//! Why a list of mounts is refused.

use thiserror::Error;

use super::MOUNTS_MAX;

/// Why a list of mounts cannot be a root file system. All of them are mistakes of the request, but for
/// [`PlanError::Verity`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PlanError {
    /// The list is too long.
    #[error("mount {0} file systems for one container, more than {MOUNTS_MAX}")]
    TooMany(usize),
    /// Nothing of the list is left for the root file system itself.
    #[error("mount a root file system of loop devices alone")]
    NoRoot,
    /// The type is not one of a file system, or its prefixes make no sense.
    #[error("mount a file system of type {kind:?}: {why}")]
    Kind {
        /// As it was asked for.
        kind: String,
        /// What is wrong.
        why: &'static str,
    },
    /// The target has a component that leads upwards.
    #[error("mount on {0:?}, which leads out of the root file system")]
    Target(String),
    /// A template is not one of the mount manager's.
    #[error("fill in the template {text:?}: {why}")]
    Template {
        /// The template, or its beginning.
        text: String,
        /// What is wrong.
        why: &'static str,
    },
    /// A template asks for a mount that is not before it.
    #[error("fill in the template {text:?}: there are {active} mounts before it")]
    Index {
        /// The action.
        text: String,
        /// Mounts that it may name, counted from 0.
        active: usize,
    },
    /// The templates grow too large.
    #[error("fill in templates with more than {0} bytes")]
    TooLong(usize),
    /// A `X-containerd.mkdir.` option is malformed.
    #[error("make the directory of mount option {option:?}: {why}")]
    Directory {
        /// The option.
        option: String,
        /// What is wrong.
        why: &'static str,
    },
    /// A `X-containerd.mkfs.` option is malformed or missing.
    #[error("make the image {image:?}: {why}")]
    Image {
        /// The image.
        image: String,
        /// What is wrong.
        why: &'static str,
    },
    /// A path that is to be made lies in nobody's keeping.
    #[error("make {0:?}, which is neither below the container's own mounts nor below containerd's directory")]
    Outside(String),
    /// The id mappings are malformed.
    #[error("map ids as in mount option {option:?}: {why}")]
    IdMap {
        /// The option.
        option: String,
        /// What is wrong.
        why: &'static str,
    },
    /// An option for the mount manager that nothing has consumed.
    #[error("honour mount option {0:?}, which is meant for a mount manager and not known to this one")]
    Unconsumed(String),
    /// The layer is protected by dm-verity, which must not be passed over.
    #[error(
        "verify a layer with dm-verity as in {0:?}: containerd does so if the module dm_verity is loaded before \
         containerd starts"
    )]
    Verity(String),
}
