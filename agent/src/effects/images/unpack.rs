//! Images that are on the node but not unpacked: imported, or fetched for another snapshotter. Their layers are applied
//! here, as a pull would have.
//!
//! Source: containerd `core/unpack/unpacker.go`.

use std::collections::HashMap;

use berth_core::failure::{Failure, FailureKind};
use containerd_client::{
    services::v1::{
        ApplyRequest, Info, UpdateRequest,
        snapshots::{
            CommitSnapshotRequest, PrepareSnapshotRequest, RemoveSnapshotRequest, StatSnapshotRequest,
        },
    },
    types::Descriptor,
};
use prost_types::FieldMask;

use super::{
    host::Host,
    inspect::{Located, chain_id},
};
use crate::runtime::{CallError, labels::GC_ROOT};

/// Applies the layers that are missing. Tells whether the node has the content of all of them: of a pull that was cut off,
/// containerd may keep the image and not its layers.
pub(in crate::effects) async fn unpack(host: &Host, image: &Located) -> Result<bool, Failure> {
    tracing::info!(image = image.info.name, "unpacking");
    // First the reference, then what it refers to: containerd's garbage collection takes what nothing refers to.
    refer(host, image).await?;
    for (index, layer) in image.layers.iter().enumerate() {
        let diff_ids = image.diff_ids.get(..=index).unwrap_or_default();
        let Some((diff_id, below)) = diff_ids.split_last() else { continue };
        let chain = chain_id(diff_ids);
        if !is_there(host, &chain).await?
            && !apply(host, layer, diff_id, &Target { chain, parent: chain_id(below) }).await?
        {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Where a layer goes.
struct Target {
    chain: String,
    parent: String,
}

async fn refer(host: &Host, image: &Located) -> Result<(), CallError> {
    let name = format!("containerd.io/gc.ref.snapshot.{}", host.config.snapshotter);
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

async fn is_there(host: &Host, chain: &str) -> Result<bool, CallError> {
    let stat = StatSnapshotRequest { snapshotter: host.config.snapshotter.clone(), key: chain.to_owned() };
    let mut client = host.containerd.snapshots();
    match host.containerd.call("look for layer", with_causes, client.stat(stat)).await {
        Ok(_) => Ok(true),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether the layer's content was there to apply.
async fn apply(host: &Host, layer: &Descriptor, diff_id: &str, target: &Target) -> Result<bool, Failure> {
    let Target { chain, parent } = target;
    let key = format!("berth-unpack-{chain}");
    // What a try that was cut off left is half applied.
    remove(host, &key).await?;
    let snapshotter = host.config.snapshotter.clone();
    let prepare = PrepareSnapshotRequest {
        snapshotter: snapshotter.clone(),
        key: key.clone(),
        parent: parent.clone(),
        labels: HashMap::from([(GC_ROOT.to_owned(), "berth".to_owned())]),
    };
    let mut client = host.containerd.snapshots();
    let mounts = host.containerd.call("prepare layer", with_causes, client.prepare(prepare)).await?.mounts;
    let request = ApplyRequest { diff: Some(layer.clone()), mounts, ..ApplyRequest::default() };
    let mut client = host.containerd.diff();
    let applied = match host.containerd.call("apply layer", &layer.digest, client.apply(request)).await {
        Err(error) if error.is_not_found() => {
            remove(host, &key).await?;
            return Ok(false);
        }
        result => result?.applied,
    };
    let found = applied.map(|applied| applied.digest).unwrap_or_default();
    if found != *diff_id {
        remove(host, &key).await?;
        let digest = &layer.digest;
        return Err(Failure {
            kind: FailureKind::ImagePull,
            message: format!("unpack layer {digest}: its content is {found}, the image says {diff_id}"),
        });
    }
    let commit = CommitSnapshotRequest { snapshotter, name: chain.clone(), key, labels: HashMap::new() };
    let mut client = host.containerd.snapshots();
    match host.containerd.call("keep layer", with_causes, client.commit(commit)).await {
        Err(error) if !error.is_already_exists() => Err(error.into()),
        Ok(_) | Err(_) => Ok(true),
    }
}

async fn remove(host: &Host, key: &str) -> Result<(), CallError> {
    let request = RemoveSnapshotRequest { snapshotter: host.config.snapshotter.clone(), key: key.to_owned() };
    let mut client = host.containerd.snapshots();
    match host.containerd.call("remove layer", key, client.remove(request)).await {
        Err(error) if !error.is_not_found() => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}
