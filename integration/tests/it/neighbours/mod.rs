//! Neighbours on one machine: what another made stays as it is, whatever Berth does, and the other way round (invariant 13).

mod cri;
mod kubelet;
mod networks;
mod one_containerd;
mod same_root;
mod second;

use crate::suite::Test;

pub(crate) fn tests() -> Vec<Test> {
    [networks::tests(), cri::tests(), one_containerd::tests(), same_root::tests(), kubelet::tests()]
        .into_iter()
        .flatten()
        .collect()
}
