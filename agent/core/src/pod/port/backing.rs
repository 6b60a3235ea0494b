//! What a directory of the pod's own is kept in. Source: `pkg/volume/emptydir/empty_dir.go`.

use std::collections::BTreeSet;

use crate::{
    cgroup,
    config::NodeConfig,
    spec::{Medium, Pod, VolumeSource},
};

/// What a directory is kept in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backing {
    /// The node's disk.
    Disk,
    /// A tmpfs.
    Memory {
        /// Its size in bytes, where it has a bound.
        size_bytes_max: Option<u64>,
    },
    /// A hugetlbfs.
    HugePages {
        /// Size of its pages in bytes.
        page_bytes: u64,
    },
}

/// Why there is no size of page for a volume, in the words of upstream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoPages {
    /// The pod asks for none.
    #[error("medium {0}: hugePages storage requested, but there is no resource request for huge pages")]
    NotRequested(String),
    /// The pod asks for several, and the volume does not say for which.
    #[error("medium: HugePages can't be used if container requests multiple huge page sizes")]
    Several,
}

/// What a volume is kept in.
pub(super) fn backing(pod: &Pod, volume: &VolumeSource, config: &NodeConfig) -> Result<Backing, NoPages> {
    let (medium, size_limit_bytes) = match volume {
        VolumeSource::EmptyDir { medium, size_limit_bytes } => (*medium, *size_limit_bytes),
        VolumeSource::Content(content) => (content.kind.medium(), None),
        VolumeSource::HostPath { .. } | VolumeSource::Claim(_) | VolumeSource::Image { .. } => {
            (Medium::Disk, None)
        }
    };
    match medium {
        Medium::Disk => Ok(Backing::Disk),
        Medium::Memory => Ok(Backing::Memory { size_bytes_max: tmpfs_size(pod, size_limit_bytes, config) }),
        Medium::HugePages(wanted) => Ok(Backing::HugePages { page_bytes: page_size(pod, wanted)? }),
    }
}

/// A memory medium is no larger than what pods may use of the node, the pod's memory limit and its own (KEP-1967).
/// Source: `calculateEmptyDirMemorySize`.
fn tmpfs_size(pod: &Pod, size_limit_bytes: Option<u64>, config: &NodeConfig) -> Option<u64> {
    let limit = cgroup::pod_values(pod, config).memory_bytes_max;
    let bounds = [config.allocatable.memory_bytes, limit, size_limit_bytes];
    bounds.into_iter().flatten().filter(|bytes| *bytes > 0).min()
}

/// A size that the pod asks for: the one of the volume, or the only one. Source: `getPageSizeMountOption`.
fn page_size(pod: &Pod, wanted: Option<u64>) -> Result<u64, NoPages> {
    let containers = pod.containers.iter().chain(&pod.init_containers).map(|container| &container.resources);
    let resources = pod.resources.iter().chain(containers);
    let sizes: BTreeSet<u64> =
        resources.flat_map(|resources| resources.requests.hugepages_bytes.keys().copied()).collect();
    match (wanted, sizes.len()) {
        (Some(size), _) if sizes.contains(&size) => Ok(size),
        (Some(size), _) => Err(NoPages::NotRequested(format!("HugePages-{}", quantity(size)))),
        (None, 2..) => Err(NoPages::Several),
        (None, _) => sizes.first().copied().ok_or_else(|| NoPages::NotRequested("HugePages".to_owned())),
    }
}

/// Bytes as a quantity of the API: `2Mi`.
fn quantity(bytes: u64) -> String {
    let units = ["", "Ki", "Mi", "Gi", "Ti", "Pi"];
    let power = units.len().min(1 + bytes.trailing_zeros() as usize / 10) - 1;
    format!("{}{}", bytes >> (10 * power), units[power])
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        fixtures,
        spec::{ContentKind, ContentVolume, QosClass, Resources},
    };

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    #[test]
    fn memory_is_bounded_by_the_node_the_pod_and_the_volume() {
        let node = fixtures::node();
        let allocatable = node.allocatable.memory_bytes;
        for (pod_limit, size_limit_bytes, expected) in [
            (0, None, allocatable),
            (0, Some(100 * GIB), allocatable),
            (0, Some(GIB), Some(GIB)),
            (2 * GIB, None, Some(2 * GIB)),
            (2 * GIB, Some(3 * GIB), Some(2 * GIB)),
            (2 * GIB, Some(GIB), Some(GIB)),
            (100 * GIB, None, allocatable),
        ] {
            let mut container = fixtures::container("main");
            container.resources = fixtures::resources((0, 0), (0, pod_limit));
            let source = VolumeSource::EmptyDir { medium: Medium::Memory, size_limit_bytes };
            let pod = Pod { qos: QosClass::Burstable, ..fixtures::pod(vec![container]) };
            let expected = Ok(Backing::Memory { size_bytes_max: expected });
            assert_eq!(backing(&pod, &source, &node), expected, "{pod_limit} {size_limit_bytes:?}");
        }
    }

    fn pages(sizes: &[u64]) -> Resources {
        let mut resources = fixtures::resources((0, 0), (0, 0));
        resources.requests.hugepages_bytes = sizes.iter().map(|size| (*size, *size)).collect();
        resources
    }

    /// Requests of the main container, an init container and the pod.
    fn pod(main: &[u64], init: &[u64], own: Option<&[u64]>) -> Pod {
        let [main, init] = [("main", main), ("init", init)].map(|(name, sizes)| {
            let mut container = fixtures::container(name);
            container.resources = pages(sizes);
            container
        });
        Pod { init_containers: vec![Arc::new(init)], resources: own.map(pages), ..fixtures::pod(vec![main]) }
    }

    #[test]
    fn huge_pages_are_of_the_size_that_the_volume_or_the_pod_asks_for() {
        let (small, large) = (2 * MIB, GIB);
        let none = |medium: &str| {
            format!(
                "medium {medium}: hugePages storage requested, but there is no resource request for huge pages"
            )
        };
        let several =
            "medium: HugePages can't be used if container requests multiple huge page sizes".to_owned();
        let node = fixtures::node();
        for (wanted, pod, expected) in [
            (None, pod(&[small], &[], None), Ok(small)),
            (None, pod(&[], &[large], None), Ok(large)),
            (None, pod(&[], &[], Some(&[large])), Ok(large)),
            (None, pod(&[small], &[small], Some(&[small])), Ok(small)),
            (None, pod(&[small], &[large], None), Err(several.clone())),
            (None, pod(&[small, large], &[], None), Err(several.clone())),
            (None, pod(&[small], &[], Some(&[large])), Err(several)),
            (None, pod(&[], &[], None), Err(none("HugePages"))),
            (Some(small), pod(&[small, large], &[], None), Ok(small)),
            (Some(large), pod(&[small], &[], Some(&[large])), Ok(large)),
            (Some(large), pod(&[small], &[], None), Err(none("HugePages-1Gi"))),
            (Some(64 << 10), pod(&[small], &[], None), Err(none("HugePages-64Ki"))),
        ] {
            let source =
                VolumeSource::EmptyDir { medium: Medium::HugePages(wanted), size_limit_bytes: Some(1) };
            let found = backing(&pod, &source, &node).map_err(|error| error.to_string());
            let expected = expected.map(|page_bytes| Backing::HugePages { page_bytes });
            assert_eq!(found, expected, "{wanted:?}");
        }
    }

    #[test]
    fn content_is_kept_where_its_kind_says() {
        let pod = pod(&[], &[], None);
        let content = |kind| VolumeSource::Content(ContentVolume { kind, default_mode: 0, sources: vec![] });
        let node = fixtures::node();
        assert_eq!(backing(&pod, &content(ContentKind::ConfigMap), &node), Ok(Backing::Disk));
        let memory = Backing::Memory { size_bytes_max: node.allocatable.memory_bytes };
        assert_eq!(backing(&pod, &content(ContentKind::Secret), &node), Ok(memory));
    }

    #[test]
    fn bytes_are_quantities() {
        let cases = [(1, "1"), (1000, "1000"), (4 << 10, "4Ki"), (3 * MIB / 2, "1536Ki"), (16 * GIB, "16Gi")];
        for (bytes, expected) in cases {
            assert_eq!(quantity(bytes), expected);
        }
    }
}
