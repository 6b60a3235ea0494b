//! An image as a pod may have it.

use std::{collections::BTreeSet, fmt};

use super::name;
use crate::{id::ImageRef, spec::Pod};

/// An image, and the secrets it may be got with: what is pulled with those of one pod is not for a pod that has others.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WantedImage {
    /// Its name, as written.
    pub image: ImageRef,
    /// The secrets' namespace; empty where there are none.
    pub namespace: String,
    /// Names of the secrets, in the order in which they are tried.
    pub secrets: Vec<String>,
}

impl WantedImage {
    /// An image for a pod.
    #[must_use]
    pub fn of(pod: &Pod, image: &ImageRef) -> Self {
        let mut seen = BTreeSet::new();
        let secrets = pod.pull_secrets.iter().filter(|name| seen.insert(*name));
        let secrets: Vec<String> = secrets.cloned().collect();
        let namespace = if secrets.is_empty() { String::new() } else { pod.name.namespace.clone() };
        Self { image: image.clone(), namespace, secrets }
    }

    /// The name that it is kept under; `None` for one that is no name.
    #[must_use]
    pub fn name(&self) -> Option<String> {
        name::kept_under(self.image.as_str()).ok()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    #[test]
    fn secrets_are_wanted_in_the_order_of_the_pod() {
        let pull_secrets = ["b", "a", "b", "c"].map(str::to_owned).to_vec();
        let pod = Pod { pull_secrets, ..fixtures::pod(Vec::new()) };
        assert_eq!(WantedImage::of(&pod, &ImageRef::new("web:1")).secrets, ["b", "a", "c"]);
    }
}
