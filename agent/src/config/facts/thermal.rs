//! Where processors tell how hot they run. Source: `pkg/securitycontext/util.go` `defaultMaskedPaths`, containerd
//! `pkg/oci/spec_linux.go` `appendCPUThrottlePaths`.

use std::{fs, path::Path};

/// `/sys/devices/system/cpu/cpu<n>/thermal_throttle` of each processor that has it, in the order of their numbers, which need not
/// be those from 0 on.
pub(super) fn counters(root: &Path) -> Vec<String> {
    const PROCESSORS: &str = "sys/devices/system/cpu";
    let entries = fs::read_dir(root.join(PROCESSORS)).into_iter().flatten().flatten();
    let mut numbers: Vec<u32> = entries
        .filter(|entry| entry.path().join("thermal_throttle").exists())
        .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("cpu")?.parse().ok())
        .collect();
    numbers.sort_unstable();
    numbers.iter().map(|number| format!("/{PROCESSORS}/cpu{number}/thermal_throttle")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_those_of_the_processors_that_there_are() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(counters(root.path()), Vec::<String>::new(), "no sysfs");
        for path in ["cpu10/thermal_throttle", "cpu2/thermal_throttle", "cpu1", "cpufreq/thermal_throttle"] {
            fs::create_dir_all(root.path().join("sys/devices/system/cpu").join(path)).unwrap();
        }
        let expected = [2, 10].map(|cpu| format!("/sys/devices/system/cpu/cpu{cpu}/thermal_throttle"));
        assert_eq!(counters(root.path()), expected);
    }
}
