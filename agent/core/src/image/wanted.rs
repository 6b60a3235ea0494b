//! An image as a pod may have it.

use std::fmt;

use crate::{id::ImageRef, spec::Pod};

/// An image, and the secrets it may be got with: what is pulled with those of one pod is not for a pod that has others.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WantedImage {
    /// Its name, as written.
    pub image: ImageRef,
    /// The secrets' namespace; empty where there are none.
    pub namespace: String,
    /// Names of the secrets.
    pub secrets: Vec<String>,
}

impl WantedImage {
    /// An image for a pod.
    #[must_use]
    pub fn of(pod: &Pod, image: &ImageRef) -> Self {
        let mut secrets = pod.pull_secrets.clone();
        secrets.sort();
        secrets.dedup();
        let namespace = if secrets.is_empty() { String::new() } else { pod.name.namespace.clone() };
        Self { image: image.clone(), namespace, secrets }
    }

    /// An image that is got without credentials.
    #[must_use]
    pub fn open(image: ImageRef) -> Self {
        Self { image, namespace: String::new(), secrets: Vec::new() }
    }
}

impl fmt::Display for WantedImage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.image.fmt(out)
    }
}
