//! The guest as a machine of a cluster: containerd and the kubelet as services of systemd, as packages bring them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use berth_integration::cluster::kubeadm::Join;
use berth_integration::cluster::{Cluster, Settings, network};
use berth_integration::node::system;
use berth_integration::{binaries, cni, components, containerd, stored};

/// What the tests have on the guest's disk.
pub(crate) const DIR: &str = "/var/lib/lab";
/// Where host-local keeps addresses.
pub(crate) const LEASES: &str = "/var/lib/lab/leases";
/// What tells one boot from another.
pub(crate) const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// From the request to reboot to the end of this process.
pub(crate) const END_LIMIT: Duration = Duration::from_secs(60);
/// The name of the node: the host's.
pub(crate) const NODE: &str = "guest";
const UPLINK: &str = "link add uplink type veth peer name upstream
link set upstream up
address add 192.0.2.10/24 dev uplink
link set uplink up
route add default via 192.0.2.1
";

/// As the unit of containerd's releases, with its programs where they are.
const CONTAINERD: &str = "[Unit]
Description=containerd
[Service]
Environment=PATH=SEARCH
ExecStart=PROGRAM --config CONFIG
Type=notify
Delegate=yes
KillMode=process
Restart=always
RestartSec=5
OOMScoreAdjust=-999
[Install]
WantedBy=multi-user.target
";
/// As the unit of kubeadm's packages, and their drop-in.
const KUBELET: &str = "[Unit]
Description=kubelet
Wants=network-online.target
After=network-online.target
[Service]
ExecStart=/usr/bin/kubelet
Restart=always
StartLimitInterval=0
RestartSec=10
[Install]
WantedBy=multi-user.target
";
const OF_KUBEADM: &str = r#"[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/default/kubelet
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
"#;

/// Makes services of the guest and starts a control plane.
pub(crate) fn start() -> Result<Cluster> {
    let dir = Path::new(DIR);
    stored::unpack(&dir.join("containerd"))?;
    let config = containerd::write_config(&dir.join("containerd"))?;
    let search = binaries::search_path(None)?;
    let unit = CONTAINERD
        .replace("SEARCH", &search.to_string_lossy())
        .replace("PROGRAM", &components::binary("containerd")?.display().to_string())
        .replace("CONFIG", &config.display().to_string());
    let units = Path::new("/etc/systemd/system");
    fs::write(units.join("containerd.service"), unit)?;
    fs::write(units.join("kubelet.service"), KUBELET)?;
    fs::create_dir_all(units.join("kubelet.service.d"))?;
    fs::write(units.join("kubelet.service.d/10-kubeadm.conf"), OF_KUBEADM)?;
    symlink(binaries::path("berth")?, "/usr/bin/kubelet").context("install the kubelet")?;
    let plugins = Path::new(network::PLUGINS);
    fs::create_dir_all(plugins.parent().unwrap_or(plugins))?;
    symlink(components::bin_dir(), plugins).context("link the plugins")?;
    cni::write(Path::new(network::NETWORKS), &cni::network(Path::new(LEASES)))?;
    let hosts = fs::read_to_string("/etc/hosts").context("read /etc/hosts")?;
    fs::write("/etc/hosts", format!("{hosts}192.0.2.10 {NODE}\n")).context("write /etc/hosts")?;
    system("systemctl", &["daemon-reload"])?;
    system("systemctl", &["enable", "containerd", "kubelet"])?;
    system("systemctl", &["start", "containerd"])?;
    let cluster = control_plane()?;
    cluster.let_nodes_join()?;
    Ok(cluster)
}

/// The same after a boot, which has started the services.
pub(crate) fn start_again() -> Result<Cluster> {
    control_plane()
}

fn control_plane() -> Result<Cluster> {
    let steps = Path::new(DIR).join("uplink");
    fs::write(&steps, UPLINK)?;
    system("ip", &["-batch", &steps.display().to_string()])?;
    fs::write("/proc/sys/net/ipv4/ip_forward", "1").context("turn forwarding on")?;
    Cluster::start(&Path::new(DIR).join("cluster"), &Settings::whole())
}

/// `kubeadm join`, with every check that it has. A kernel without cpusets, such as Debian's of User-Mode Linux, has to be the only
/// thing that it minds.
pub(crate) fn join(cluster: &Cluster) -> Result<()> {
    let config = Path::new(DIR).join("join.yaml");
    let join = Join::of_command(&cluster.join_command()?)?;
    fs::write(&config, join.document(NODE).to_string())?;
    let (mut is_joined, mut said) = kubeadm_join(&config, &[])?;
    if !is_joined {
        let minded: Vec<&str> = said.lines().filter(|line| line.trim().starts_with("[ERROR ")).collect();
        let is_cpusets = |line: &&str| line.to_lowercase().contains("cpuset");
        ensure!(!minded.is_empty() && minded.iter().all(is_cpusets), "kubeadm join failed: {said}");
        println!("kubeadm minds: {minded:?}");
        (is_joined, said) = kubeadm_join(&config, &["--ignore-preflight-errors=SystemVerification"])?;
    }
    ensure!(is_joined, "kubeadm join failed: {said}");
    Ok(())
}

/// Whether it worked, and what it said.
fn kubeadm_join(config: &Path, more: &[&str]) -> Result<(bool, String)> {
    let mut command = Command::new(components::binary("kubeadm")?);
    let done =
        command.arg("join").args(more).arg("--config").arg(config).output().context("start kubeadm")?;
    let said = [&done.stdout[..], &done.stderr].map(|said| String::from_utf8_lossy(said).into_owned());
    Ok((done.status.success(), said.concat()))
}

pub(crate) fn reboot() -> Result<()> {
    // Without logind `systemctl reboot` complains before it does so.
    system("systemctl", &["start", "--no-block", "--job-mode=replace-irreversibly", "reboot.target"])
        .map(drop)
}

/// What runs, for when something did not come about. The journal is kept with the guest's logs.
pub(crate) fn situation() -> String {
    system("ps", &["-e", "-o", "pid,stat,time,args"]).unwrap_or_else(|failure| format!("{failure:#}"))
}
