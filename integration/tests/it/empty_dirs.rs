//! Volumes that begin empty and live as long as their pod: on disk, in memory, in huge pages.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use anyhow::{Result, ensure};
use berth_integration::agent::{ROOT_DIR, Settings};
use berth_integration::node::{Node, POD_LIMIT};
use serde_json::{Value, json};

use crate::kit::{events, eventually, inside, pod, shell};
use crate::suite::{Test, same, test};
use crate::volumes::{plain, with_volume};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("volumes::empty_dir_on_disk_and_in_memory", empty_dir),
        test("volumes::empty_dir_in_huge_pages", huge_pages),
        test("volumes::empty_dir_survives_a_restart_of_its_container", survives),
    ]
}

fn empty_dir() -> Result<()> {
    let node = Node::start()?;
    node.apply(
        "disk",
        &with_volume(
            "disk",
            json!({ "emptyDir": {} }),
            json!({}),
            json!({ "securityContext": { "fsGroup": 5000 } }),
        ),
    )?;
    node.apply(
        "memory",
        &plain("memory", json!({ "emptyDir": { "medium": "Memory", "sizeLimit": "4Mi" } })),
    )?;
    let disk = node.ready("disk")?;
    same("mode and group", inside(&disk, "stat -c '%a %g' /v")?.as_str(), "2777 5000")?;
    inside(&disk, "echo hello > /v/file")?;
    let dir = format!("{ROOT_DIR}/pods/{}/volumes/kubernetes.io~empty-dir/v", disk.uid());
    same("on the node", fs::read_to_string(format!("{dir}/file"))?.as_str(), "hello\n")?;
    same("group of a file", fs::metadata(format!("{dir}/file"))?.gid(), 5000)?;
    let memory = node.ready("memory")?;
    same("file system", inside(&memory, "stat -f -c %T /v")?.as_str(), "tmpfs")?;
    same("size", inside(&memory, "df -k /v | awk 'END { print $2 }'")?.as_str(), "4096")?;
    let full = inside(&memory, "dd if=/dev/zero of=/v/big bs=1M count=8 2>/dev/null; stat -c %s /v/big")?;
    ensure!(full.parse::<u64>()? <= 4 << 20, "wrote {full} bytes");
    let source = json!({ "emptyDir": { "medium": "Memory", "sizeLimit": "100Mi" } });
    node.apply("shm", &with_volume("shm", source, json!({ "mountPath": "/dev/shm" }), json!({})))?;
    let shm = node.ready("shm")?;
    same(
        "size of a volume there",
        inside(&shm, "df -k /dev/shm | awk 'END { print $2 }'")?.as_str(),
        "102400",
    )?;
    node.end()
}

/// A request for none is one for their size too: the machine may have no page to give.
fn huge_pages() -> Result<()> {
    let mut node = Node::start()?;
    let of = |name: &str, medium: &str, limits: Value| {
        let main = json!({ "volumeMounts": [{ "name": "v", "mountPath": "/v" }], "resources": { "limits": limits } });
        let volumes = json!([{ "name": "v", "emptyDir": { "medium": medium } }]);
        pod(name, json!({ "containers": [shell("main", "exec sleep infinity", main)], "volumes": volumes }))
    };
    let pages = json!({ "memory": "64Mi", "hugepages-2Mi": 0 });
    for (name, medium) in [("any", "HugePages"), ("small", "HugePages-2Mi")] {
        node.apply(name, &of(name, medium, pages.clone()))?;
    }
    node.apply("large", &of("large", "HugePages-1Gi", pages))?;
    let shown = "awk '$2 == \"/v\" { print $3, $4 }' /proc/mounts";
    let mut dirs = Vec::new();
    for name in ["any", "small"] {
        let web = node.ready(name)?;
        let mount = inside(&web, shown)?;
        ensure!(mount.starts_with("hugetlbfs rw,") && mount.contains("pagesize=2M"), "{mount:?}");
        dirs.push((
            web.uid().to_owned(),
            format!("{ROOT_DIR}/pods/{}/volumes/kubernetes.io~empty-dir/v", web.uid()),
        ));
    }
    let why = "MountVolume.SetUp failed for volume \"v\" : medium HugePages-1Gi: hugePages storage requested, but \
               there is no resource request for huge pages";
    let large = node.wait("large", "to be there", POD_LIMIT, |_pod| true)?;
    eventually("what is missing to be told", &true, || Ok(events(&large)?.contains(why)))?;
    node.agent.kill()?;
    node.agent.start()?;
    for (name, (uid, dir)) in ["any", "small"].iter().zip(&dirs) {
        let web = node.ready(name)?;
        same("UID", web.uid(), uid.as_str())?;
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        same("mounts", mounts.lines().filter(|line| line.contains(dir)).count(), 1)?;
    }
    node.clear()?;
    node.end()
}

fn survives() -> Result<()> {
    let node = Node::start_with(&Settings {
        kubelet: json!({ "crashLoopBackOff": { "maxContainerRestartPeriod": "1s" } }),
        ..Default::default()
    })?;
    let count = "echo x >> /v/count; test $(wc -l < /v/count) -ge 3 || exit 1; exec sleep infinity";
    node.apply("count", &pod("count", json!({
        "containers": [shell("main", count, json!({ "volumeMounts": [{ "name": "v", "mountPath": "/v" }] }))],
        "volumes": [{ "name": "v", "emptyDir": {} }],
    })))?;
    let pod = node
        .wait("count", "up in its third run", POD_LIMIT, |pod| pod.restarts("main") == 2 && pod.is_ready())?;
    same("lines", inside(&pod, "wc -l < /v/count")?.as_str(), "3")?;
    node.end()
}
