//! What of the machine is left for pods.

use berth_core::spec::Quantities;

use super::Settings;
use crate::quantity::Quantity;

impl Settings {
    /// Capacity without what is kept for the system and for Kubernetes.
    /// Source: `pkg/kubelet/cm/node_container_manager_linux.go` `GetNodeAllocatableAbsolute`.
    pub(super) fn unreserved(&self, capacity: &Quantities) -> Quantities {
        let left = |all: Option<u64>, kept: u64| all.map(|all| all.saturating_sub(kept));
        Quantities {
            cpu_milli: left(capacity.cpu_milli, self.reserved("cpu", milli)),
            memory_bytes: left(capacity.memory_bytes, self.reserved("memory", units)),
            ephemeral_storage_bytes: left(
                capacity.ephemeral_storage_bytes,
                self.reserved("ephemeral-storage", units),
            ),
            hugepages_bytes: capacity.hugepages_bytes.clone(),
            extended: capacity.extended.clone(),
        }
    }

    /// The same without the hard eviction thresholds of memory and disk, and without the memory that is huge pages.
    /// Source: `GetNodeAllocatableReservation` there, `pkg/kubelet/nodestatus/setters.go` `MachineInfo`.
    pub(super) fn allocatable(&self, capacity: &Quantities) -> Quantities {
        let left = self.unreserved(capacity);
        let threshold = |signal, all: Option<u64>| self.threshold(signal, all.unwrap_or(0));
        let pages = capacity.hugepages_bytes.values().sum::<u64>();
        let memory = threshold("memory.available", capacity.memory_bytes).saturating_add(pages);
        let disk = threshold("nodefs.available", capacity.ephemeral_storage_bytes);
        Quantities {
            memory_bytes: left.memory_bytes.map(|bytes| bytes.saturating_sub(memory)),
            ephemeral_storage_bytes: left.ephemeral_storage_bytes.map(|bytes| bytes.saturating_sub(disk)),
            ..left
        }
    }

    /// Number of tasks that are kept for the system and for Kubernetes.
    pub(super) fn reserved_pids(&self) -> u64 {
        self.reserved("pid", units)
    }

    fn reserved(&self, name: &str, amount: fn(&str) -> Option<u64>) -> u64 {
        let reserved = [&self.kubelet.kube_reserved, &self.kubelet.system_reserved];
        let amounts = reserved.into_iter().flatten().filter_map(|map| amount(map.get(name)?));
        amounts.fold(0, u64::saturating_add)
    }

    /// A hard eviction threshold in units of the resource; 0 when there is none. Both ends of the range are none, written in just this way
    /// (`parseThresholdStatement` of `pkg/kubelet/eviction/helpers.go`).
    fn threshold(&self, signal: &str, capacity: u64) -> u64 {
        let Some(text) = self.kubelet.eviction_hard.as_ref().and_then(|signals| signals.get(signal)) else {
            return 0;
        };
        match text.strip_suffix('%') {
            Some("0" | "100") => 0,
            Some(percent) => percent.parse::<f32>().map_or(0, |percent| share(capacity, percent)),
            None => units(text).unwrap_or(0),
        }
    }
}

/// A part of a capacity in the arithmetic of the kubelet, whose single precision shows in what it tells
/// (`parsePercentage` of `pkg/kubelet/eviction/helpers.go`, `GetThresholdQuantity` of `pkg/kubelet/eviction/api/types.go`).
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "percentages are checked: 0 to 100"
)]
fn share(capacity: u64, percent: f32) -> u64 {
    (capacity as f64 * f64::from(percent / 100.0)) as u64
}

/// A quantity in whole units.
pub(super) fn units(text: &str) -> Option<u64> {
    text.parse::<Quantity>().ok().and_then(|amount| u64::try_from(amount.units()).ok())
}

fn milli(text: &str) -> Option<u64> {
    text.parse::<Quantity>().ok().and_then(|amount| u64::try_from(amount.milli()).ok())
}
