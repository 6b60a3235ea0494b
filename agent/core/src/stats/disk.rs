//! What is used of disks, and where it is looked for.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::v2::device_number;
use crate::id::{PodName, PodUid};

/// File systems of the node that are shown.
const SHOWN_MAX: usize = 64;

/// Devices whose counts are read.
const DISKS_MAX: usize = 1024;

/// A file system as `statvfs` tells of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FileSystem {
    /// In bytes.
    pub capacity: u64,
    /// Bytes that are free.
    pub free: u64,
    /// Bytes that are free for all.
    pub available: u64,
    /// How many inodes it has.
    pub inodes: u64,
    /// How many are free.
    pub inodes_free: u64,
}

impl FileSystem {
    /// Bytes that are in use.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.capacity.saturating_sub(self.free)
    }

    /// Inodes that are in use.
    #[must_use]
    pub fn inodes_used(&self) -> u64 {
        self.inodes.saturating_sub(self.inodes_free)
    }
}

/// What a tree uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// When it was measured.
    pub at: Timestamp,
    /// Bytes on disk.
    pub bytes: u64,
    /// Inodes.
    pub inodes: u64,
    /// The file system it is on.
    pub file_system: FileSystem,
}

/// What a pod uses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodUsage {
    /// By the name of the volume.
    pub volumes: BTreeMap<String, Usage>,
    /// Logs by the name of the container.
    pub logs: BTreeMap<String, Usage>,
    /// Writable layers by the id of the container.
    pub layers: BTreeMap<String, Usage>,
    /// Files beside its containers' logs.
    pub pod_logs: Option<Usage>,
    /// Its hosts file.
    pub hosts: Option<Usage>,
}

/// What is used of disks, as far as it was measured.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DiskUsage {
    /// By pod.
    pub pods: BTreeMap<PodUid, PodUsage>,
    /// The file system of the root directory.
    pub node: Option<(Timestamp, FileSystem)>,
    /// That of images and containers.
    pub images: Option<(Timestamp, FileSystem)>,
    /// Bytes and inodes of the layers of images, where they are known.
    pub layers_used: Option<(u64, u64)>,
    /// File systems of the node.
    pub mounted: Vec<(Mounted, FileSystem)>,
}

impl DiskUsage {
    /// Bytes and inodes of images and containers, where they are known.
    pub(super) fn images_used(&self) -> Option<(u64, u64)> {
        let layers = self.pods.values().flat_map(|pod| pod.layers.values());
        let add = |(bytes, inodes): (u64, u64), layer: &Usage| {
            (bytes.saturating_add(layer.bytes), inodes.saturating_add(layer.inodes))
        };
        self.layers_used.map(|used| layers.fold(used, add))
    }
}

/// Bytes of the logs of a container: UID, namespace and name of the pod, and the name of the container. Pods that are no longer here have
/// none. Source: `pkg/kubelet/metrics/collectors/log_metrics.go`.
pub fn log_sizes<'a>(
    disks: &'a DiskUsage,
    pods: impl IntoIterator<Item = (&'a PodUid, &'a PodName)>,
) -> Vec<([&'a str; 4], u64)> {
    let of_pod = |(uid, name): (&'a PodUid, &'a PodName)| {
        let logs = disks.pods.get(uid).into_iter().flat_map(|usage| &usage.logs);
        logs.map(move |(container, usage)| {
            ([uid.as_str(), name.namespace.as_str(), name.name.as_str(), container.as_str()], usage.bytes)
        })
    };
    pods.into_iter().flat_map(of_pod).collect()
}

/// A file system that is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mounted {
    /// The device, or, of memory, the place.
    pub device: String,
    /// Where.
    pub point: String,
    /// Number of the device.
    pub number: (u32, u32),
}

/// File systems of the node in a `mountinfo`: those of devices, each once, that of the root, and those in memory, except below a
/// directory. File systems of the network are left out: they may not answer. Source: cAdvisor `fs/fs.go` `processMounts`.
#[must_use]
pub fn mounted(mountinfo: &str, except: &str) -> Vec<Mounted> {
    let mut found: Vec<Mounted> = Vec::new();
    for mount in mountinfo.lines().filter_map(Mount::parse) {
        let is_below = |dir: &str| mount.point.strip_prefix(dir).is_some_and(|rest| rest.starts_with('/'));
        let device = match mount.kind {
            _ if mount.source.starts_with("/dev/") || mount.point == "/" => mount.source.clone(),
            "tmpfs" if !is_below(except) => mount.point.clone(),
            _ => continue,
        };
        if found.len() < SHOWN_MAX && !found.iter().any(|known| known.device == device) {
            found.push(Mounted { device, point: mount.point, number: mount.number });
        }
    }
    found
}

/// What `/proc/diskstats` counts of each device: reads, reads merged, sectors read, milliseconds of reading, the same of writes, transfers
/// under way, milliseconds with any under way, and those times how many. Source: Linux, `Documentation/admin-guide/iostats.rst`.
#[must_use]
pub fn disk_stats(text: &str) -> BTreeMap<(u32, u32), [u64; 11]> {
    let line = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let number = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let counts: Vec<u64> = words.skip(1).take(11).map(str::parse).collect::<Result<_, _>>().ok()?;
        Some((number, counts.try_into().ok()?))
    };
    text.lines().filter_map(line).take(DISKS_MAX).collect()
}

/// The writable layer of a container in the `mountinfo` of one of its processes, if it is below a directory: a process that may
/// mount can say anything.
#[must_use]
pub fn upper_dir(mountinfo: &str, below: &str) -> Option<String> {
    let root = mountinfo.lines().filter_map(Mount::parse).rfind(|mount| mount.point == "/")?;
    let upper = root.options.split(',').find_map(|option| option.strip_prefix("upperdir="))?;
    let upper = unescaped(upper);
    let rest = upper.strip_prefix(below)?;
    let is_below = rest.starts_with('/') && !rest.split('/').any(|part| part == "..");
    (root.kind == "overlay" && is_below).then_some(upper)
}

/// A line of a `mountinfo`. Source: proc(5).
struct Mount<'a> {
    number: (u32, u32),
    point: String,
    kind: &'a str,
    source: String,
    options: &'a str,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(2);
        let (number, _root, point) = (device_number(before.next()?)?, before.next()?, before.next()?);
        let mut after = after.split(' ');
        let (kind, source) = (after.next()?, after.next()?);
        let options = after.next().unwrap_or_default();
        Some(Self { number, point: unescaped(point), kind, source: unescaped(source), options })
    }
}

/// With octal escapes resolved.
fn unescaped(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut plain = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let code = part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match (code, part.get(3..)) {
            (Some(byte), Some(rest)) => {
                plain.push(byte);
                plain.extend_from_slice(rest.as_bytes());
            }
            _ => {
                plain.push(b'\\');
                plain.extend_from_slice(part.as_bytes());
            }
        }
    }
    String::from_utf8_lossy(&plain).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: &str = "\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
23 22 0:20 / /run rw,nosuid shared:2 - tmpfs tmpfs rw,size=1k\n\
24 22 8:1 /x /mnt/bind rw - ext4 /dev/sda1 rw\n\
25 22 8:17 / /var/lib/a\\040b rw - xfs /dev/sdb1 rw\n\
26 22 0:50 / /var/lib/kubelet/pods/u/volumes/t rw - tmpfs tmpfs rw\n\
27 22 0:51 / /nfs rw - nfs4 server:/x rw\n\
28 22 0:52 / /proc rw - proc proc rw\n\
29 22 0:53 / /merged rw - overlay overlay rw,upperdir=/u\n\
broken line\n";

    #[test]
    fn file_systems_of_the_node_are_found_once() {
        let found = mounted(NODE, "/var/lib/kubelet");
        let found: Vec<_> = found.iter().map(|one| (one.device.as_str(), one.point.as_str())).collect();
        assert_eq!(found, [("/dev/sda1", "/"), ("/run", "/run"), ("/dev/sdb1", "/var/lib/a b")]);
        let many: String =
            (0..200).map(|number| format!("1 1 0:1 / /t{number} rw - tmpfs tmpfs rw\n")).collect();
        assert_eq!(mounted(&many, "/x").len(), SHOWN_MAX);
    }

    #[test]
    fn a_writable_layer_is_where_containerd_has_them_and_nowhere_else() {
        let root = "/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs";
        let line = |kind: &str, point: &str, upper: &str| {
            format!("9 1 0:9 / {point} rw - {kind} overlay rw,lowerdir=/l:/m,upperdir={upper},workdir=/w\n")
        };
        let good = format!("{root}/snapshots/7/fs");
        let cases = [
            (line("overlay", "/", &good), Some(good.clone())),
            (line("overlay", "/", "/etc") + &line("overlay", "/", &good), Some(good.clone())),
            (line("overlay", "/", &good) + &line("overlay", "/", "/etc"), None),
            (line("overlay", "/", &format!("{root}/../../../../etc")), None),
            (line("overlay", "/", &format!("{root}x/fs")), None),
            (line("overlay", "/", root), None),
            (line("overlay", "/data", &good), None),
            (line("tmpfs", "/", &good), None),
            (String::new(), None),
            ("9 1 0:9 / / rw - ext4 /dev/x rw\n".to_owned(), None),
        ];
        for (text, expected) in cases {
            assert_eq!(upper_dir(&text, root), expected, "{text}");
        }
    }

    #[test]
    fn counts_of_devices_are_read() {
        let text =
            "   8       0 sda 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17\n   8 1 sda1 1 2 3\n 8 2 sda2 x\n";
        assert_eq!(disk_stats(text), BTreeMap::from([((8, 0), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11])]));
    }

    #[test]
    fn escapes_are_resolved() {
        for (text, expected) in [
            ("a\\040b", "a b"),
            ("\\134", "\\"),
            ("a\\", "a\\"),
            ("\\9x", "\\9x"),
            ("\\303\\244", "ä"),
            ("\\777", "\\777"),
        ] {
            assert_eq!(unescaped(text), expected, "{text}");
        }
    }
}
