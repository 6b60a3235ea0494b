//! Images that are on the node but not unpacked: imported, or fetched for another snapshotter. Their layers are applied
//! here, as a pull would have.
//!
//! Source: containerd `core/unpack/unpacker.go`.

use std::collections::HashMap;

use berth_core::failure::{Failure, FailureKind};
use containerd_client::{
    services::v1::{
        ApplyRequest, Info, UpdateRequest,
        snapshots::{CommitSnapshotRequest, PrepareSnapshotRequest},
    },
    types::Descriptor,
};
use prost_types::FieldMask;
use tonic::Code;

use super::{
    documents::chain_id,
    host::Host,
    inspect::{Located, is_unpacked},
    kinds::{Lane, PULL},
    lease::{Lease, Leaves},
};
use crate::runtime::{CallError, Cause};

/// Applies the layers that are missing. Tells whether the node has the content of all of them: of a pull that was cut off,
/// containerd may keep the image and not its layers.
pub(in crate::effects) async fn unpack(host: &Host, image: &Located) -> Result<bool, Failure> {
    let _place = host.lanes.enter(Lane::Unpacks, PULL).await?;
    tracing::info!(image = image.info.name, "unpacking");
    let lease = Lease::take(host).await?;
    let unpacked = unpack_layers(host, image, &lease).await;
    host.failpoint.reach("unpack.done");
    let leaves = if matches!(unpacked, Ok(true)) { Leaves::Kept } else { Leaves::HalfMade };
    lease.end(host, leaves).await;
    unpacked
}

async fn unpack_layers(host: &Host, image: &Located, lease: &Lease) -> Result<bool, Failure> {
    let mut parent = String::new();
    for (layer, diff_id) in pairs(&image.info.name, &image.layers, &image.diff_ids)? {
        let target = Target { chain_id: chain_id(&parent, diff_id), parent };
        if !is_unpacked(host, &target.chain_id).await? && !apply(host, layer, diff_id, &target, lease).await?
        {
            return Ok(false);
        }
        parent = target.chain_id;
    }
    // Before the lease ends, which keeps them until then.
    refer(host, image).await?;
    Ok(true)
}

/// Each layer with the digest of its content. Source: containerd, `core/unpack/unpacker.go` `unpack`.
fn pairs<'a>(
    image: &str,
    layers: &'a [Descriptor],
    diff_ids: &'a [String],
) -> Result<impl Iterator<Item = (&'a Descriptor, &'a String)>, Failure> {
    if layers.len() != diff_ids.len() {
        let (manifest, config) = (layers.len(), diff_ids.len());
        let message = format!(
            "unpack image {image}: its manifest has {manifest} layers, its config tells the content of {config}"
        );
        return Err(Failure { kind: FailureKind::ImagePull, message });
    }
    Ok(layers.iter().zip(diff_ids))
}

/// Where a layer goes.
struct Target {
    chain_id: String,
    parent: String,
}

async fn refer(host: &Host, image: &Located) -> Result<(), CallError> {
    let name = format!("containerd.io/gc.ref.snapshot.{}", host.settings().snapshotter);
    let info = Info {
        digest: image.info.id.clone(),
        labels: HashMap::from([(name.clone(), image.info.chain_id.clone())]),
        ..Info::default()
    };
    let update = UpdateRequest {
        info: Some(info),
        update_mask: Some(FieldMask { paths: vec![format!("labels.{name}")] }),
    };
    let mut client = host.containerd.content();
    host.containerd.call("label", &image.info.id, client.update(update)).await?;
    Ok(())
}

/// Whether the layer's content was there to apply. What is left half applied goes with the lease.
async fn apply(
    host: &Host,
    layer: &Descriptor,
    diff_id: &str,
    target: &Target,
    lease: &Lease,
) -> Result<bool, Failure> {
    let Target { chain_id, parent } = target;
    let snapshotter = host.settings().snapshotter.clone();
    // Other images may have the layer too, and be unpacked at this moment.
    let key = lease.key(chain_id);
    let prepare = PrepareSnapshotRequest {
        snapshotter: snapshotter.clone(),
        key: key.clone(),
        parent: parent.clone(),
        labels: HashMap::new(),
    };
    let mut client = host.containerd.snapshots();
    let prepared =
        host.containerd.call("prepare layer", chain_id, client.prepare(lease.with(prepare))).await?;
    let request =
        ApplyRequest { diff: Some(layer.clone()), mounts: prepared.mounts, ..ApplyRequest::default() };
    let mut client = host.containerd.diff();
    // As in a pull, that takes as long as the disk needs.
    let applied = match client.apply(request).await.map_err(Cause::from) {
        Err(Cause::Refused { code: Code::NotFound, .. }) => return Ok(false),
        Err(cause) => return Err(CallError::new("apply layer", &layer.digest, cause).into()),
        Ok(answer) => answer.into_inner().applied,
    };
    let found = applied.map(|applied| applied.digest).unwrap_or_default();
    if found != *diff_id {
        let digest = &layer.digest;
        return Err(Failure {
            kind: FailureKind::ImagePull,
            message: format!("unpack layer {digest}: its content is {found}, the image says {diff_id}"),
        });
    }
    host.failpoint.reach("unpack.applied");
    let commit = CommitSnapshotRequest { snapshotter, name: chain_id.clone(), key, labels: HashMap::new() };
    let mut client = host.containerd.snapshots();
    match host.containerd.call("keep layer", chain_id, client.commit(lease.with(commit))).await {
        Err(error) if !error.is_already_exists() => Err(error.into()),
        Ok(_) | Err(_) => Ok(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A container would start without its upper layers, or never.
    #[test]
    fn a_layer_without_a_digest_of_its_content_is_no_image() {
        for (layers, diff_ids, is_one) in
            [(0, 0, true), (2, 2, true), (2, 1, false), (2, 0, false), (1, 2, false)]
        {
            let (layers, diff_ids) = (vec![Descriptor::default(); layers], vec![String::new(); diff_ids]);
            let pairs = pairs("image", &layers, &diff_ids).map(Iterator::count);
            assert_eq!(pairs.ok(), is_one.then_some(layers.len()));
        }
    }
}
