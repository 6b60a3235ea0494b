//! Requests, limits and the class they put a pod in.

use std::collections::BTreeMap;

use crate::id::ContainerName;

/// Requests and limits of a container or of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resources {
    /// What is set aside.
    pub requests: Quantities,
    /// What may be used at most.
    pub limits: Quantities,
}

/// Amounts, each absent when not named.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Quantities {
    /// CPU in thousandths of a core, rounded up.
    pub cpu_milli: Option<u64>,
    /// Memory in bytes.
    pub memory_bytes: Option<u64>,
    /// Local storage in bytes.
    pub ephemeral_storage_bytes: Option<u64>,
    /// Huge pages in bytes by page size in bytes.
    pub hugepages_bytes: BTreeMap<u64, u64>,
    /// Extended resources by name.
    pub extended: BTreeMap<String, u64>,
}

/// Quality-of-service class of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QosClass {
    /// Every container has limits for CPU and memory, and requests equal to them.
    Guaranteed,
    /// Something is requested.
    Burstable,
    /// Nothing is requested.
    BestEffort,
}

impl QosClass {
    /// As in `status.qosClass`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }
}

/// `resourceFieldRef`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceSelector {
    /// The container whose resources are meant; the own one when absent.
    pub container: Option<ContainerName>,
    /// Which of them.
    pub field: ResourceField,
    /// The unit to divide by: thousandths of a core for CPU, bytes for the rest. At least 1.
    pub divisor: u64,
}

/// The resources that `resourceFieldRef` can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResourceField {
    /// `limits.cpu`.
    LimitsCpu,
    /// `limits.memory`.
    LimitsMemory,
    /// `limits.ephemeral-storage`.
    LimitsEphemeralStorage,
    /// `requests.cpu`.
    RequestsCpu,
    /// `requests.memory`.
    RequestsMemory,
    /// `requests.ephemeral-storage`.
    RequestsEphemeralStorage,
    /// `limits.hugepages-<size>`, of pages of so many bytes.
    LimitsHugePages(u64),
    /// `requests.hugepages-<size>`, of pages of so many bytes.
    RequestsHugePages(u64),
}
