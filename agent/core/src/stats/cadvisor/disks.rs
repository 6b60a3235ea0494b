//! Transfers of each level to disks and networks, and file systems of the node.

use super::{Kind, Labels, Row, Series, Values, float, timed};
use crate::stats::{Device, FileSystem, Interface, level::DeviceStats};

/// All of them.
pub(super) const ALL: [Series; 26] = [
    timed("container_fs_inodes_free", "Inodes of a file system that are free.", Kind::Gauge, |row| {
        file_systems(row, |fs| fs.inodes_free)
    }),
    timed("container_fs_inodes_total", "Inodes of a file system.", Kind::Gauge, |row| {
        file_systems(row, |fs| fs.inodes)
    }),
    timed("container_fs_limit_bytes", "Size of a file system, in bytes.", Kind::Gauge, |row| {
        file_systems(row, |fs| fs.capacity)
    }),
    timed("container_fs_usage_bytes", "Bytes of a file system in use.", Kind::Gauge, |row| {
        file_systems(row, FileSystem::used)
    }),
    timed("container_fs_reads_bytes_total", "Bytes read from a device.", Kind::Counter, |row| {
        devices(row, |device| DeviceStats::of(&device.stats.bytes, "Read"))
    }),
    timed("container_fs_writes_bytes_total", "Bytes written to a device.", Kind::Counter, |row| {
        devices(row, |device| DeviceStats::of(&device.stats.bytes, "Write"))
    }),
    timed("container_fs_reads_total", "Reads from a device.", Kind::Counter, |row| {
        let of_level = devices(row, |device| DeviceStats::of(&device.stats.operations, "Read"));
        with_counts(row, of_level, 0, 1.0)
    }),
    timed("container_fs_writes_total", "Writes to a device.", Kind::Counter, |row| {
        let of_level = devices(row, |device| DeviceStats::of(&device.stats.operations, "Write"));
        with_counts(row, of_level, 4, 1.0)
    }),
    timed("container_fs_reads_merged_total", "Reads that were made one with others.", Kind::Counter, |row| {
        with_counts(row, Vec::new(), 1, 1.0)
    }),
    timed(
        "container_fs_writes_merged_total",
        "Writes that were made one with others.",
        Kind::Counter,
        |row| with_counts(row, Vec::new(), 5, 1.0),
    ),
    timed("container_fs_sector_reads_total", "Sectors read from a device.", Kind::Counter, |row| {
        with_counts(row, Vec::new(), 2, 1.0)
    }),
    timed("container_fs_sector_writes_total", "Sectors written to a device.", Kind::Counter, |row| {
        with_counts(row, Vec::new(), 6, 1.0)
    }),
    timed("container_fs_read_seconds_total", "Seconds that reads took.", Kind::Counter, |row| {
        with_counts(row, Vec::new(), 3, MILLIS)
    }),
    timed("container_fs_write_seconds_total", "Seconds that writes took.", Kind::Counter, |row| {
        with_counts(row, Vec::new(), 7, MILLIS)
    }),
    timed("container_fs_io_current", "Transfers under way.", Kind::Gauge, |row| {
        with_counts(row, Vec::new(), 8, 1.0)
    }),
    timed("container_fs_io_time_seconds_total", "Seconds with a transfer under way.", Kind::Counter, |row| {
        with_counts(row, Vec::new(), 9, MILLIS)
    }),
    timed(
        "container_fs_io_time_weighted_seconds_total",
        "The same, times how many were under way.",
        Kind::Counter,
        |row| with_counts(row, Vec::new(), 10, MILLIS),
    ),
    timed(
        "container_blkio_device_usage_total",
        "Bytes moved to and from a device, by direction.",
        Kind::Counter,
        operations,
    ),
    timed(
        "container_network_receive_bytes_total",
        "Bytes that came in on an interface.",
        Kind::Counter,
        |row| interfaces(row, |interface| interface.received[0]),
    ),
    timed(
        "container_network_receive_packets_total",
        "Packets that came in on an interface.",
        Kind::Counter,
        |row| interfaces(row, |interface| interface.received[1]),
    ),
    timed("container_network_receive_errors_total", "Packets that came in damaged.", Kind::Counter, |row| {
        interfaces(row, |interface| interface.received[2])
    }),
    timed(
        "container_network_receive_packets_dropped_total",
        "Packets that came in and were thrown away.",
        Kind::Counter,
        |row| interfaces(row, |interface| interface.received[3]),
    ),
    timed(
        "container_network_transmit_bytes_total",
        "Bytes that went out on an interface.",
        Kind::Counter,
        |row| interfaces(row, |interface| interface.sent[0]),
    ),
    timed(
        "container_network_transmit_packets_total",
        "Packets that went out on an interface.",
        Kind::Counter,
        |row| interfaces(row, |interface| interface.sent[1]),
    ),
    timed(
        "container_network_transmit_errors_total",
        "Packets that could not be sent.",
        Kind::Counter,
        |row| interfaces(row, |interface| interface.sent[2]),
    ),
    timed(
        "container_network_transmit_packets_dropped_total",
        "Packets that were thrown away instead of sent.",
        Kind::Counter,
        |row| interfaces(row, |interface| interface.sent[3]),
    ),
];

/// Seconds in a millisecond.
const MILLIS: f64 = 0.001;

fn interfaces(row: &Row<'_>, value: impl Fn(&Interface) -> u64) -> Values {
    let all = row.network.into_iter().flat_map(|network| &network.interfaces);
    all.map(|interface| (Labels::new([("interface", interface.name.as_str())]), float(value(interface))))
        .collect()
}

fn file_systems(row: &Row<'_>, value: impl Fn(&FileSystem) -> u64) -> Values {
    let all = row.disks.into_iter().flat_map(|disks| &disks.mounted);
    all.map(|(mounted, fs)| (Labels::new([("device", mounted.device.as_str())]), float(value(fs)))).collect()
}

fn devices(row: &Row<'_>, value: impl Fn(&Device) -> Option<u64>) -> Values {
    let all = row.sampled.level.devices.iter();
    unique(all.filter_map(|device| Some((name(row, device), float(value(device)?)))))
}

/// With what the kernel counts of the devices of the node's file systems, which the root has.
fn with_counts(row: &Row<'_>, of_level: Values, place: usize, unit: f64) -> Values {
    let all = row.disks.into_iter().flat_map(|disks| &disks.mounted);
    let counted = all.filter_map(|(mounted, _)| {
        let counts = row.read.node.disk_stats.get(&mounted.number)?;
        Some((Labels::new([("device", mounted.device.as_str())]), float(*counts.get(place)?) * unit))
    });
    let mut values = of_level;
    for (labels, value) in counted {
        if !values.iter().any(|(known, _)| *known == labels) {
            values.push((labels, value));
        }
    }
    values
}

/// Devices without a name have one line together: there may be no two with the same labels.
fn unique<'a>(all: impl Iterator<Item = (&'a str, f64)>) -> Values {
    let mut values: Vec<(&str, f64)> = Vec::new();
    for (name, value) in all {
        match values.iter_mut().find(|(known, _)| *known == name) {
            Some((_, sum)) => *sum += value,
            None => values.push((name, value)),
        }
    }
    values.into_iter().map(|(name, value)| (Labels::new([("device", name)]), value)).collect()
}

fn operations(row: &Row<'_>) -> Values {
    let of_device = |device: &Device| -> Values {
        let [major, minor] = [device.number.0, device.number.1].map(|number| number.to_string());
        let one = |(operation, count): &(String, u64)| {
            let labels = [
                ("device", name(row, device)),
                ("major", major.as_str()),
                ("minor", minor.as_str()),
                ("operation", operation.as_str()),
            ];
            (Labels::new(labels), float(*count))
        };
        device.stats.bytes.iter().map(one).collect()
    };
    row.sampled.level.devices.iter().flat_map(of_device).collect()
}

fn name<'a>(row: &'a Row<'_>, device: &Device) -> &'a str {
    row.read.node.disks.get(&device.number).map_or("", String::as_str)
}
