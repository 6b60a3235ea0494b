//! Ids of the node that pods have which run in a user namespace of their own (KEP-127).
//!
//! Source: `pkg/kubelet/userns/userns_manager.go`, `getKubeletMappings` of `pkg/kubelet/kubelet_pods.go`.

use std::collections::BTreeSet;

use thiserror::Error;

use crate::id::PodUid;

/// Ids for a pod come in multiples of this: each has a `nobody` (65534).
const UNIT: u32 = 65_536;

/// Users and groups of the node that are those of one pod, whose own begin at 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostIds {
    /// Root of the pod, as the node sees it.
    pub first: u32,
    /// How many.
    pub count: u32,
}

impl HostIds {
    /// Of which pods, by position among those of this length, nobody else can have any.
    fn slots(self, length: u32) -> std::ops::RangeInclusive<u32> {
        let last = self.first.saturating_add(self.count.saturating_sub(1));
        self.first / length..=last / length
    }
}

/// Why pods can have no ids.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum IdsError {
    /// Not as the kernel's maps are to be.
    #[error(
        "give ids to pods with user namespaces: from {first} on, {count} ids, {per_pod} for each pod: all have to be multiples of {per_pod}, and that one of {UNIT}"
    )]
    Unaligned {
        /// First id.
        first: u32,
        /// Number of ids.
        count: u32,
        /// Ids of one pod.
        per_pod: u32,
    },
    /// The node's root and users are among them.
    #[error(
        "give ids to pods with user namespaces: {first} is below {per_pod}, and ids of the node itself are not given"
    )]
    OfNode {
        /// First id.
        first: u32,
        /// Ids of one pod.
        per_pod: u32,
    },
    /// Fewer than pods.
    #[error(
        "give ids to pods with user namespaces: {count} ids are not enough for {pods} pods (maxPods) of {per_pod} ids (userNamespaces.idsPerPod)"
    )]
    TooFew {
        /// Number of ids.
        count: u32,
        /// Pods that there may be.
        pods: u32,
        /// Ids of one pod.
        per_pod: u32,
    },
}

/// The ids that pods may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodIds {
    first_slot: u32,
    slots: u32,
    per_pod: u32,
}

impl PodIds {
    /// All ids above the node's own, so many for each pod: a multiple of 65536.
    ///
    /// # Errors
    /// See [`IdsError`].
    pub fn all(per_pod: u32, pods: u32) -> Result<Self, IdsError> {
        Self::of(per_pod, 0_u32.wrapping_sub(per_pod), per_pod, pods)
    }

    /// These ids of the node, from `first` on, so many for each of so many pods.
    ///
    /// # Errors
    /// See [`IdsError`].
    pub fn of(first: u32, count: u32, per_pod: u32, pods: u32) -> Result<Self, IdsError> {
        let is_aligned = per_pod != 0
            && [(per_pod, UNIT), (first, per_pod), (count, per_pod)]
                .iter()
                .all(|(value, unit)| value.is_multiple_of(*unit));
        if !is_aligned {
            return Err(IdsError::Unaligned { first, count, per_pod });
        }
        if first < per_pod {
            return Err(IdsError::OfNode { first, per_pod });
        }
        // The last id of all stands for none.
        let (first_slot, slots) = (first / per_pod, count.min(u32::MAX - first) / per_pod);
        if slots < pods {
            return Err(IdsError::TooFew { count, pods, per_pod });
        }
        Ok(Self { first_slot, slots, per_pod })
    }

    /// Ids for a pod that no other has; `None` when all are taken.
    ///
    /// Where they are follows from its UID, as far as they are free: pods that come after each other, or belong to two agents of one
    /// node, seldom have the same.
    #[must_use]
    pub fn give(&self, uid: &PodUid, taken: impl IntoIterator<Item = HostIds>) -> Option<HostIds> {
        let taken: BTreeSet<u32> = taken.into_iter().flat_map(|ids| ids.slots(self.per_pod)).collect();
        let start = place(uid) % self.slots.max(1);
        let mut slots = (start..self.slots).chain(0..start).map(|slot| self.first_slot + slot);
        let free = slots.find(|slot| !taken.contains(slot))?;
        Some(HostIds { first: free * self.per_pod, count: self.per_pod })
    }
}

/// FNV-1a.
pub(crate) fn place(uid: &PodUid) -> u32 {
    let step = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    uid.as_str().as_bytes().iter().fold(0x811c_9dc5, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uid(number: u32) -> PodUid {
        PodUid::new(format!("pod-{number}"))
    }

    #[test]
    fn ids_are_whole_pods_above_those_of_the_node() {
        for (first, count, per_pod, pods, good) in [
            (65_536, 65_536 * 110, 65_536, 110, true),
            (131_072, 131_072 * 2, 131_072, 2, true),
            (65_536, 65_536 * 109, 65_536, 110, false),
            (0, 65_536 * 110, 65_536, 110, false),
            (65_537, 65_536 * 110, 65_536, 110, false),
            (65_536, 65_536 * 110 + 1, 65_536, 110, false),
            (65_536, 65_536 * 110, 1000, 110, false),
            (65_536, 65_536 * 110, 0, 110, false),
            (65_536, 131_072 * 110, 131_072, 110, false),
        ] {
            let made = PodIds::of(first, count, per_pod, pods);
            assert_eq!(made.is_ok(), good, "{first} {count} {per_pod} {pods}: {made:?}");
        }
        let all = PodIds::all(65_536, 110).unwrap();
        assert_eq!((all.first_slot, all.slots), (1, 65_534));
        PodIds::all(1 << 31, 2).unwrap_err();
    }

    #[test]
    fn no_two_pods_have_the_same_ids_until_all_are_taken() {
        let ids = PodIds::of(131_072, 65_536 * 3, 65_536, 3).unwrap();
        let mut taken = Vec::new();
        for number in 0..3 {
            let given = ids.give(&uid(number), taken.iter().copied()).unwrap();
            assert!(given.first >= 131_072 && given.first < 131_072 + 65_536 * 3, "{given:?}");
            assert_eq!((given.first % 65_536, given.count), (0, 65_536));
            assert!(!taken.contains(&given), "{taken:?} {given:?}");
            taken.push(given);
        }
        assert_eq!(ids.give(&uid(3), taken.iter().copied()), None);
        // What one leaves is for the next.
        let left = taken.remove(1);
        assert_eq!(ids.give(&uid(3), taken), Some(left));
    }

    #[test]
    fn a_pod_of_another_length_takes_all_that_it_reaches_into() {
        let ids = PodIds::of(65_536, 65_536 * 4, 65_536, 4).unwrap();
        let longer = HostIds { first: 131_072, count: 131_072 };
        let given: BTreeSet<u32> =
            (0..64).filter_map(|number| Some(ids.give(&uid(number), [longer])?.first)).collect();
        assert_eq!(given, BTreeSet::from([65_536, 65_536 * 4]));
    }

    #[test]
    fn a_uid_decides_where_the_ids_of_its_pod_are() {
        let ids = PodIds::all(65_536, 110).unwrap();
        let given: BTreeSet<u32> =
            (0..50).filter_map(|number| Some(ids.give(&uid(number), [])?.first)).collect();
        assert!(given.len() > 45, "{given:?}");
        assert_eq!(ids.give(&uid(7), []), ids.give(&uid(7), []));
    }
}
