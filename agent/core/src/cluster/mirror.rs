//! Mirror pods: what the API shows of pods that it did not give. Source: `pkg/kubelet/pod/mirror_client.go`,
//! `tryReconcileMirrorPods` of `pkg/kubelet/kubelet.go`.

use super::sync::{ApiPod, Mirror};
use crate::id::PodUid;

/// What is to be done about the mirror of one name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Mirroring {
    /// Nothing.
    Nothing,
    /// Make it.
    Create(Mirror),
    /// Delete it: it shows another pod, is being deleted, or shows none.
    Delete(PodUid),
    /// It is there, and shows the pod's status.
    Show,
}

/// `api` is the mirror that the API has, `shown` what the pod of this name wants of one, and `is_here` whether a pod of this name is on
/// the node or may still come. Until it has been taken down, its mirror stays.
pub(super) fn next(api: Option<&ApiPod>, shown: Option<&Mirror>, is_here: bool) -> Mirroring {
    match (api, shown) {
        (None, Some(mirror)) => Mirroring::Create(mirror.clone()),
        (None, None) => Mirroring::Nothing,
        (Some(api), Some(mirror)) => {
            if !api.is_deleted && api.mirrors.as_ref() == Some(&mirror.hash) {
                Mirroring::Show
            } else {
                Mirroring::Delete(api.uid.clone())
            }
        }
        (Some(_), None) if is_here => Mirroring::Nothing,
        (Some(api), None) => Mirroring::Delete(api.uid.clone()),
    }
}
