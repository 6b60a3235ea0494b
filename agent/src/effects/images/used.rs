//! What images are used by: containers of anybody in the namespace, and whatever else is mounted of their layers.
//!
//! A writable layer, that of an image volume too, or a view names the layers of an image as its parent, whoever made it and whatever the
//! image is called by now. A container whose layer is not in containerd names its image.

use std::{collections::BTreeSet, time::Duration};

use berth_core::image::collection::StoredImage;
use containerd_client::services::v1::{ListContainersRequest, snapshots::ListSnapshotsRequest};
use tokio::time::timeout;

use crate::{
    causes::with_causes,
    runtime::{CallError, Containerd},
};

/// How long a snapshotter of others may take to list its layers: one that hangs keeps no image.
const OTHERS_WITHIN: Duration = Duration::from_secs(10);

/// What is in use.
#[derive(Debug, Default)]
pub(super) struct Used {
    /// Names of images.
    names: BTreeSet<String>,
    /// Chain ids of layers that others are above.
    parents: BTreeSet<String>,
}

impl Used {
    /// Reads it, of this snapshotter and of those that containers are on. One of others that is not there any more, or does not answer, uses no
    /// layers of this one; its containers have their images by name.
    ///
    /// # Errors
    /// Containerd does not list something.
    pub(super) async fn read(containerd: &Containerd, snapshotter: &str) -> Result<Self, CallError> {
        let mut used = Self::default();
        let mut others = BTreeSet::new();
        let mut client = containerd.containers();
        let all = client.list_stream(ListContainersRequest::default());
        let mut stream = containerd.call("list containers", "", all).await?;
        while let Some(message) = containerd.next("list containers", "", stream.message()).await? {
            let Some(container) = message.container else { continue };
            used.names.insert(container.image);
            others.insert(container.snapshotter);
        }
        used.read_parents(containerd, snapshotter).await?;
        for other in others.iter().filter(|name| !name.is_empty() && *name != snapshotter) {
            let read = timeout(OTHERS_WITHIN, used.read_parents(containerd, other)).await;
            if let Err(why) = read
                .map_err(|late| with_causes(&late))
                .and_then(|read| read.map_err(|error| with_causes(&error)))
            {
                tracing::warn!(snapshotter = other, why, "what its layers are used by is not known");
            }
        }
        Ok(used)
    }

    async fn read_parents(&mut self, containerd: &Containerd, snapshotter: &str) -> Result<(), CallError> {
        let filters = ["kind==active", "kind==view"].map(str::to_owned).to_vec();
        let request = ListSnapshotsRequest { snapshotter: snapshotter.to_owned(), filters };
        let mut client = containerd.snapshots();
        let mut stream = containerd.call("list layers", snapshotter, client.list(request)).await?;
        while let Some(some) = containerd.next("list layers", snapshotter, stream.message()).await? {
            self.parents.extend(some.info.into_iter().map(|info| info.parent));
        }
        Ok(())
    }

    /// Whether an image is.
    pub(super) fn has(&self, image: &StoredImage) -> bool {
        (!image.chain_id.is_empty() && self.parents.contains(&image.chain_id))
            || image.names.iter().any(|record| self.names.contains(&record.name))
    }
}

#[cfg(test)]
mod tests {
    use berth_core::image::collection::StoredName;
    use jiff::Timestamp;

    use super::*;

    #[test]
    fn an_image_is_used_by_what_is_above_its_layers_and_by_containers_that_name_it() {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let image = StoredImage {
            id: "sha256:a".to_owned(),
            names: ["web:1", "web@sha256:b"]
                .map(|name| StoredName { name: name.to_owned(), target: "sha256:b".to_owned() })
                .into(),
            chain_id: "sha256:layers".to_owned(),
            size_bytes: 1,
            touched: Timestamp::UNIX_EPOCH,
            stays: None,
        };
        for (names, parents, expected) in [
            (&[][..], &[][..], false),
            (&["other:1"], &["sha256:others"], false),
            (&[], &["sha256:layers"], true),
            (&[], &[""], false),
            (&["web:1"], &[], true),
            (&["web@sha256:b"], &["sha256:others"], true),
            // Of which image a container is says its name alone.
            (&["sha256:layers"], &["web:1"], false),
        ] {
            let used = Used { names: set(names), parents: set(parents) };
            assert_eq!(used.has(&image), expected, "{names:?} {parents:?}");
        }
    }
}
