//! Images by size, since pulls of large ones take longer.

/// A mebibyte and a gibibyte.
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The classes, smallest first: more than so many bytes, and how the class is called.
const CLASSES: [(u64, &str); 12] = [
    (0, "0-10MB"),
    (10 * MIB, "10MB-100MB"),
    (100 * MIB, "100MB-500MB"),
    (500 * MIB, "500MB-1GB"),
    (GIB, "1GB-5GB"),
    (5 * GIB, "5GB-10GB"),
    (10 * GIB, "10GB-20GB"),
    (20 * GIB, "20GB-30GB"),
    (30 * GIB, "30GB-40GB"),
    (40 * GIB, "40GB-60GB"),
    (60 * GIB, "60GB-100GB"),
    (100 * GIB, "GT100GB"),
];

/// The class of an image of so many bytes. Source: `GetImageSizeBucket` of `pkg/kubelet/metrics/metrics.go`.
#[must_use]
pub fn image_size(bytes: u64) -> &'static str {
    let class = CLASSES.iter().rev().find(|(more_than, _)| bytes > *more_than);
    class.map_or("N/A", |(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_begins_beyond_its_bound() {
        for (bytes, class) in [
            (0, "N/A"),
            (1, "0-10MB"),
            (10 * MIB, "0-10MB"),
            (10 * MIB + 1, "10MB-100MB"),
            (GIB, "500MB-1GB"),
            (GIB + 1, "1GB-5GB"),
            (u64::MAX, "GT100GB"),
        ] {
            assert_eq!(image_size(bytes), class, "{bytes}");
        }
    }
}
