//! `lo` in a network namespace of its own. Needs root, as everything that makes namespaces.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::fixture::wait_until;

/// A process in a new network namespace, which ends with it.
struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Holder {
    async fn start() -> Self {
        let holder = Command::new("unshare")
            .args(["--net", "sleep", "1000"])
            .stdout(Stdio::null())
            .spawn()
            .map(Self)
            .expect("unshare from util-linux");
        let own = fs::read_link("/proc/self/ns/net").unwrap();
        wait_until("the namespace", || {
            fs::read_link(holder.path("ns/net")).is_ok_and(|theirs| theirs != own)
        })
        .await;
        holder
    }

    fn path(&self, below: &str) -> PathBuf {
        format!("/proc/{}/{below}", self.0.id()).into()
    }

    fn inside(&self, script: &str) -> String {
        let netns = format!("--net={}", self.path("ns/net").display());
        let output = Command::new("nsenter").args([&netns, "sh", "-c", script]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }
}

#[tokio::test]
async fn lo_comes_up_and_only_there() {
    let holder = Holder::start().await;
    let own = fs::read_link("/proc/self/ns/net").unwrap();
    let flags = "cat /proc/net/if_inet6 | grep -c lo || true";
    assert_eq!(holder.inside(flags), "0", "a new namespace has its lo down");
    for _again in 0..2 {
        berth_cni::netns::bring_up_loopback(&holder.path("ns/net")).unwrap();
        assert_eq!(holder.inside(flags), "1");
    }
    assert_eq!(fs::read_link("/proc/self/ns/net").unwrap(), own, "this thread did not move");
}

/// As containerd's CRI and the kubelet leave it: a network may give addresses by router advertisements.
#[tokio::test]
async fn cve_2020_10749_router_advertisements_are_the_networks_own_business() {
    let holder = Holder::start().await;
    let setting =
        "cat /proc/sys/net/ipv6/conf/all/accept_ra /proc/sys/net/ipv6/conf/default/accept_ra | tr '\\n' ' '";
    let before = holder.inside(setting);
    berth_cni::netns::bring_up_loopback(&holder.path("ns/net")).unwrap();
    assert_eq!(holder.inside(setting), before);
}
