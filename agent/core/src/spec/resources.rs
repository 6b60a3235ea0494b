//! Requests, limits and the class they put a pod in.

use std::collections::BTreeMap;

use super::{Container, Pod};
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

/// What of a container or a pod can be changed while it runs, each 0 where it is not named.
///
/// Source: `resourceRequirements` of `pkg/kubelet/kuberuntime/kuberuntime_manager.go`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuMemory {
    /// `requests.cpu`, in thousandths of a core.
    pub cpu_request: u64,
    /// `limits.cpu`, in thousandths of a core.
    pub cpu_limit: u64,
    /// `requests.memory` in bytes.
    pub memory_request: u64,
    /// `limits.memory` in bytes.
    pub memory_limit: u64,
}

/// A resource that can be changed while a container runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resizable {
    /// Memory.
    Memory,
    /// CPU time.
    Cpu,
}

impl CpuMemory {
    /// Those of a container: what it does not limit itself is limited by its pod. Source: `GetLimits` of `pkg/kubelet/util/util.go`.
    #[must_use]
    pub fn of(pod: &Pod, container: &Container) -> Self {
        let (own, whole) = (Self::named(&container.resources), Self::of_pod(pod));
        let limit = |own: u64, whole: u64| if own > 0 { own } else { whole };
        Self {
            cpu_limit: limit(own.cpu_limit, whole.cpu_limit),
            memory_limit: limit(own.memory_limit, whole.memory_limit),
            ..own
        }
    }

    /// Those that a pod names for itself.
    #[must_use]
    pub fn of_pod(pod: &Pod) -> Self {
        pod.resources.as_ref().map(Self::named).unwrap_or_default()
    }

    /// Those that are named.
    fn named(resources: &Resources) -> Self {
        let Resources { requests, limits } = resources;
        Self {
            cpu_request: requests.cpu_milli.unwrap_or(0),
            cpu_limit: limits.cpu_milli.unwrap_or(0),
            memory_request: requests.memory_bytes.unwrap_or(0),
            memory_limit: limits.memory_bytes.unwrap_or(0),
        }
    }

    /// The same resources with these amounts.
    #[must_use]
    pub fn in_place_of(self, resources: &Resources) -> Resources {
        let named = |amount: u64| Some(amount).filter(|amount| *amount > 0);
        let mut resources = resources.clone();
        resources.requests.cpu_milli = named(self.cpu_request);
        resources.limits.cpu_milli = named(self.cpu_limit);
        resources.requests.memory_bytes = named(self.memory_request);
        resources.limits.memory_bytes = named(self.memory_limit);
        resources
    }

    /// The same with one resource of others.
    #[must_use]
    pub fn with(self, resource: Resizable, others: Self) -> Self {
        match resource {
            Resizable::Memory => {
                Self { memory_request: others.memory_request, memory_limit: others.memory_limit, ..self }
            }
            Resizable::Cpu => Self { cpu_request: others.cpu_request, cpu_limit: others.cpu_limit, ..self },
        }
    }

    /// Limit and request of one resource.
    #[must_use]
    pub fn amounts(self, resource: Resizable) -> (u64, u64) {
        match resource {
            Resizable::Memory => (self.memory_limit, self.memory_request),
            Resizable::Cpu => (self.cpu_limit, self.cpu_request),
        }
    }

    /// The larger of each: no limit is the largest.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        let limit = |one: u64, other: u64| if one == 0 || other == 0 { 0 } else { one.max(other) };
        Self {
            cpu_request: self.cpu_request.max(other.cpu_request),
            cpu_limit: limit(self.cpu_limit, other.cpu_limit),
            memory_request: self.memory_request.max(other.memory_request),
            memory_limit: limit(self.memory_limit, other.memory_limit),
        }
    }

    /// The smaller of each: no limit is the largest.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        let limit =
            |one: u64, other: u64| if one == 0 || other == 0 { one.max(other) } else { one.min(other) };
        Self {
            cpu_request: self.cpu_request.min(other.cpu_request),
            cpu_limit: limit(self.cpu_limit, other.cpu_limit),
            memory_request: self.memory_request.min(other.memory_request),
            memory_limit: limit(self.memory_limit, other.memory_limit),
        }
    }
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

    /// The one of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::Guaranteed, Self::Burstable, Self::BestEffort].into_iter().find(|class| class.as_str() == name)
    }
}

/// Whether a resource is a vendor's, of which request and limit are the same. Source: `IsExtendedResourceName` of
/// `pkg/apis/core/helper/helpers.go`.
#[must_use]
pub fn is_extended(resource: &str) -> bool {
    resource.contains('/') && !resource.contains("kubernetes.io/")
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
