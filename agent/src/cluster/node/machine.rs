//! What hardly ever changes on the machine, read once: `Info` of cadvisor's `machine/info.go` and `utils/sysfs`.

use std::{collections::BTreeSet, fs, io, path::Path};

use berth_core::{
    cluster::node::{Devices, Machine},
    spec::Quantities,
};
use nix::sys::utsname::uname;
use serde_json::Value;

use crate::causes::with_causes;

/// Where the firmware's id is, on different machines.
const SYSTEM_UUID: [&str; 4] = [
    "/sys/class/dmi/id/product_uuid",
    "/proc/device-tree/system-id",
    "/proc/device-tree/vm,uuid",
    "/etc/machine-id",
];
const MACHINE_ID: [&str; 2] = ["/etc/machine-id", "/var/lib/dbus/machine-id"];
const BOOT_ID: [&str; 1] = ["/proc/sys/kernel/random/boot_id"];
const OS_RELEASE: [&str; 2] = ["/etc/os-release", "/usr/lib/os-release"];

/// Below the root directory: what the device manager of a kubelet keeps (`pkg/kubelet/cm/devicemanager/types.go`).
const DEVICES: &str = "device-plugins/kubelet_internal_checkpoint";

/// Reads it. What is not there is said to be nothing, as the kubelet says it. `root` is the kubelet's root directory.
pub(super) async fn read(capacity: &Quantities, allocatable: &Quantities, root: &str) -> Machine {
    let (capacity, allocatable) = (capacity.clone(), allocatable.clone());
    let checkpoint = Path::new(root).join(DEVICES);
    let read = tokio::task::spawn_blocking(move || Machine {
        machine_id: first(&MACHINE_ID),
        system_uuid: first(&SYSTEM_UUID),
        boot_id: first(&BOOT_ID),
        kernel_version: kernel_version(),
        os_image: pretty_name(&first(&OS_RELEASE)),
        architecture: architecture().to_owned(),
        swap_bytes: swap_bytes(),
        capacity,
        allocatable,
        devices: devices(&checkpoint),
    });
    read.await.unwrap_or_default()
}

/// `machine-id`, `product_uuid`, `boot_id`, the release of the kernel and the name of the operating system.
pub(crate) fn names() -> [String; 5] {
    let [machine_id, system_uuid, boot_id] = [&MACHINE_ID[..], &SYSTEM_UUID, &BOOT_ID].map(first);
    [machine_id, system_uuid, boot_id, kernel_version(), pretty_name(&first(&OS_RELEASE))]
}

fn kernel_version() -> String {
    uname().map_or_else(|_unknown| "Unknown".to_owned(), |name| name.release().to_string_lossy().into_owned())
}

/// One that cannot be understood is one all the same, as to the kubelet.
fn devices(checkpoint: &Path) -> Devices {
    let text = match fs::read_to_string(checkpoint) {
        Ok(text) => text,
        Err(error) => {
            let has_checkpoint = error.kind() != io::ErrorKind::NotFound;
            if has_checkpoint {
                let file = checkpoint.display();
                tracing::warn!(%file, error = with_causes(&error), "which devices a kubelet had is not known");
            }
            return Devices { has_checkpoint, registered: BTreeSet::new() };
        }
    };
    let known: Value = serde_json::from_str(&text).unwrap_or_default();
    let registered = known.pointer("/Data/RegisteredDevices").and_then(Value::as_object);
    let registered = registered.into_iter().flat_map(|all| all.keys().cloned()).collect();
    Devices { has_checkpoint: true, registered }
}

/// As Go calls it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// The first of these files that is there, without blanks at its ends.
fn first(paths: &[&str]) -> String {
    let text = paths.iter().find_map(|path| fs::read_to_string(Path::new(path)).ok()).unwrap_or_default();
    text.trim_matches(|end: char| end.is_whitespace() || end == '\0').to_owned()
}

fn pretty_name(os_release: &str) -> String {
    let value = os_release.lines().find_map(|line| line.trim().strip_prefix("PRETTY_NAME="));
    value.map_or("Linux", |value| value.trim_matches(['"', '\''])).to_owned()
}

fn swap_bytes() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("SwapTotal:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_system_is_as_its_maker_wrote_it() {
        for (text, name) in [
            ("ID=debian\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n", "Debian GNU/Linux 12 (bookworm)"),
            ("PRETTY_NAME='Alpine Linux v3.20'", "Alpine Linux v3.20"),
            ("PRETTY_NAME=Arch", "Arch"),
            ("", "Linux"),
        ] {
            assert_eq!(pretty_name(text), name);
        }
    }

    /// As a kubelet wrote it.
    #[test]
    fn the_checkpoint_of_a_device_manager_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("checkpoint");
        let registered: BTreeSet<String> = ["vendor.com/gpu".to_owned()].into();
        for (text, registered) in [
            (
                r#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{"vendor.com/gpu":["0","1"]}},"Checksum":7}"#,
                registered,
            ),
            (r#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":null},"Checksum":7}"#, BTreeSet::new()),
            ("{", BTreeSet::new()),
        ] {
            fs::write(&path, text).unwrap();
            assert_eq!(devices(&path), Devices { has_checkpoint: true, registered }, "{text}");
        }
    }

    #[tokio::test]
    async fn this_machine_is_read() {
        let machine = read(&Quantities::default(), &Quantities::default(), "/nowhere").await;
        assert_eq!(machine.devices, Devices::default());
        assert_eq!(machine.boot_id.len(), 36);
        assert!(!machine.kernel_version.is_empty() && !machine.os_image.is_empty());
    }
}
