//! What a container may do and sees, read from inside it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use berth_integration::agent::Settings;
use berth_integration::cni;
use berth_integration::node::{Node, POD_LIMIT, PodState};
use serde_json::{Value, json};

use crate::kit::{events, exec, inside, logged, pod, script, shell, sleeper, with};
use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("security::default_container", default_container),
        test("security::users_groups_and_capabilities", users),
        test("security::run_as_non_root_refuses_root", non_root),
        test("security::privileged_and_unconfined", privileged),
        test("security::namespaces_of_the_node", node_namespaces),
        test("security::shared_process_namespace", shared_processes),
        test("security::sysctls", sysctls),
        test("security::host_names_hosts_and_resolver", names),
        test("security::environment_and_downward_api", environment),
        test("security::cve_2024_21626_no_descriptor_leaks_into_a_container", descriptors),
        test("security::state_directories_are_closed", directories),
    ]
}

fn main_with(name: &str, security: Value, spec: Value) -> String {
    let main = shell("main", "exec sleep infinity", json!({ "securityContext": security }));
    pod(name, with(json!({ "containers": [main] }), spec))
}

/// A line of `/proc/self/status` in the container.
fn status(pod: &PodState, key: &str) -> Result<String> {
    let table = inside(pod, "cat /proc/self/status")?;
    let line = table.lines().find_map(|line| line.strip_prefix(&format!("{key}:")));
    Ok(line.with_context(|| format!("no {key}"))?.trim().to_owned())
}

fn default_container() -> Result<()> {
    let node = Node::start()?;
    node.apply("plain", &sleeper("plain"))?;
    let plain = node.ready("plain")?;
    // The fourteen of containerd's default, as far as this machine has them.
    const DEFAULT: u64 = 0x0000_0000_a804_25fb;
    let mine = fs::read_to_string("/proc/self/status")?;
    let bounding = mine.lines().find_map(|line| line.strip_prefix("CapBnd:")).context("no CapBnd")?;
    let bounding = u64::from_str_radix(bounding.trim(), 16)?;
    same("capabilities", u64::from_str_radix(&status(&plain, "CapEff")?, 16)?, DEFAULT & bounding)?;
    same("no new privileges", status(&plain, "NoNewPrivs")?.as_str(), "0")?;
    same("seccomp", status(&plain, "Seccomp")?.as_str(), "0")?;
    same("uid", inside(&plain, "id -u")?.as_str(), "0")?;
    // Masked and read-only paths.
    let masked: Vec<&str> = ["/proc/kcore", "/proc/keys", "/proc/timer_list"]
        .into_iter()
        .filter(|path| Path::new(path).exists())
        .collect();
    ensure!(!masked.is_empty(), "the machine has none of them");
    for path in masked {
        same(path, inside(&plain, &format!("wc -c < {path}"))?.as_str(), "0")?;
    }
    for path in ["/proc/sysrq-trigger", "/proc/sys/kernel/panic"] {
        let look = format!("test -e {path} && echo there || echo none");
        let wanted = if Path::new(path).exists() { "there" } else { "none" };
        same(path, inside(&plain, &look)?.as_str(), wanted)?;
    }
    same("firmware", inside(&plain, "ls /sys/firmware | wc -l")?.as_str(), "0")?;
    same(
        "sysrq",
        inside(&plain, "echo h > /proc/sysrq-trigger 2>/dev/null || echo refused")?.as_str(),
        "refused",
    )?;
    same(
        "sysctl",
        inside(&plain, "echo 1 > /proc/sys/kernel/panic 2>/dev/null || echo refused")?.as_str(),
        "refused",
    )?;
    same("devices", inside(&plain, "ls /dev | grep -cE '^(sd|nvme|kvm|mem|loop)' || true")?.as_str(), "0")?;
    let hierarchies = inside(&plain, "find /sys/fs/cgroup -maxdepth 2 -name cgroup.procs")?;
    ensure!(!hierarchies.is_empty(), "no cgroup is seen");
    for procs in hierarchies.lines() {
        let dir = procs.trim_end_matches("/cgroup.procs");
        let made = inside(&plain, &format!("mkdir {dir}/x 2>/dev/null || echo refused"))?;
        same(&format!("a cgroup in {dir}"), made.as_str(), "refused")?;
    }
    node.end()
}

fn users() -> Result<()> {
    let node = Node::start()?;
    node.apply(
        "user",
        &main_with(
            "user",
            json!({
                "runAsUser": 1000, "runAsGroup": 3000,
                "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
                "capabilities": { "drop": ["ALL"], "add": ["NET_BIND_SERVICE"] },
                "seccompProfile": { "type": "RuntimeDefault" },
            }),
            json!({ "securityContext": { "supplementalGroups": [4000], "fsGroup": 5000 } }),
        ),
    )?;
    node.apply(
        "root",
        &main_with(
            "root",
            json!({ "capabilities": { "add": ["SYS_PTRACE"], "drop": ["CHOWN"] } }),
            json!({}),
        ),
    )?;
    let user = node.ready("user")?;
    same("uid and gid", inside(&user, "echo $(id -u):$(id -g)")?.as_str(), "1000:3000")?;
    let groups = status(&user, "Groups")?;
    for group in ["3000", "4000", "5000", "2000"] {
        ensure!(groups.split_whitespace().any(|one| one == group), "{group} is not in {groups}");
    }
    same("no new privileges", status(&user, "NoNewPrivs")?.as_str(), "1")?;
    same("seccomp", status(&user, "Seccomp")?.as_str(), "2")?;
    same("bounding set", u64::from_str_radix(&status(&user, "CapBnd")?, 16)?, 1 << 10)?;
    same(
        "write to the root",
        inside(&user, "echo x 2>/dev/null > /tmp/x || echo refused")?.as_str(),
        "refused",
    )?;
    let root = node.ready("root")?;
    let capabilities = u64::from_str_radix(&status(&root, "CapEff")?, 16)?;
    ensure!(capabilities & 1 == 0, "CHOWN was not dropped: {capabilities:x}");
    ensure!(capabilities & (1 << 19) != 0, "SYS_PTRACE was not added: {capabilities:x}");
    node.end()
}

fn non_root() -> Result<()> {
    let node = Node::start()?;
    node.apply("rootless", &main_with("rootless", json!({ "runAsNonRoot": true }), json!({})))?;
    let refused = node.wait("rootless", "refused", POD_LIMIT, |pod| {
        pod.waits_for("main") == "CreateContainerConfigError"
    })?;
    let message = refused.container("main")["state"]["waiting"]["message"].as_str().unwrap_or_default();
    ensure!(message.contains("runAsNonRoot") && message.contains("root"), "{message}");
    node.end()
}

fn privileged() -> Result<()> {
    let node = Node::start()?;
    node.apply("all", &main_with("all", json!({ "privileged": true }), json!({})))?;
    let all = node.ready("all")?;
    let mine = fs::read_to_string("/proc/self/status")?;
    let own = mine.lines().find_map(|line| line.strip_prefix("CapEff:")).context("no CapEff")?;
    same("capabilities", status(&all, "CapEff")?.as_str(), own.trim())?;
    same("seccomp", status(&all, "Seccomp")?.as_str(), "0")?;
    same("a sysctl", inside(&all, "test -w /proc/sys/kernel/panic && echo writable")?.as_str(), "writable")?;
    same(
        "cgroups",
        inside(
            &all,
            "test -w /sys/fs/cgroup/memory || test -w /sys/fs/cgroup/cgroup.procs && echo writable",
        )?
        .as_str(),
        "writable",
    )?;
    if Path::new("/dev/kvm").exists() {
        same("devices", inside(&all, "test -c /dev/kvm && echo there")?.as_str(), "there")?;
    }
    node.end()
}

fn node_namespaces() -> Result<()> {
    let node = Node::start()?;
    let host = |name: &str, field: &str| {
        pod(name, json!({ field: true, "containers": [shell("main", "exec sleep infinity", json!({}))] }))
    };
    for (name, field) in [("net", "hostNetwork"), ("pid", "hostPID"), ("ipc", "hostIPC")] {
        node.apply(name, &host(name, field))?;
    }
    node.apply("own", &sleeper("own"))?;
    let own = node.ready("own")?;
    for space in ["net", "pid", "ipc"] {
        let pod = node.ready(space)?;
        let mine = fs::read_link(format!("/proc/self/ns/{space}"))?.display().to_string();
        let link = format!("readlink /proc/self/ns/{space}");
        same(&format!("{space} namespace of the node"), inside(&pod, &link)?, mine.clone())?;
        ensure!(inside(&own, &link)? != mine, "{space} namespace of a pod is the node's");
    }
    let net = node.ready("net")?;
    ensure!(
        net.ip()? == net.0["status"]["hostIP"].as_str().unwrap_or_default().parse::<std::net::IpAddr>()?,
        "{net}"
    );
    node.end()
}

fn shared_processes() -> Result<()> {
    let node = Node::start()?;
    let two =
        json!([shell("main", "exec sleep 1000", json!({})), shell("other", "exec sleep 2000", json!({}))]);
    node.apply("shared", &pod("shared", json!({ "shareProcessNamespace": true, "containers": two })))?;
    node.apply("apart", &pod("apart", json!({ "containers": two })))?;
    let shared = node.ready("shared")?;
    let seen = inside(&shared, "ps -o args")?;
    ensure!(seen.contains("sleep 1000") && seen.contains("sleep 2000"), "{seen}");
    let first = inside(&shared, "tr '\\0' ' ' < /proc/1/cmdline")?;
    ensure!(!first.contains("sleep"), "process 1 of the pod is a container's: {first}");
    let apart = node.ready("apart")?;
    let seen = inside(&apart, "ps -o args")?;
    ensure!(!seen.contains("sleep 2000"), "{seen}");
    // Both share the network and ipc namespaces of the pod.
    for space in ["net", "ipc", "uts"] {
        let link = ["readlink", &format!("/proc/self/ns/{space}")];
        same(space, exec(&apart, "main", &link)?, exec(&apart, "other", &link)?)?;
    }
    // Orphans are reaped by the pod's process 1.
    inside(&shared, "(sh -c 'echo $$ > /tmp/orphan; exec sleep 0.1' &) ; true")?;
    // A zombie is still in /proc.
    crate::kit::eventually("the orphan to be reaped", &"gone".to_owned(), || {
        inside(
            &shared,
            "pid=$(cat /tmp/orphan) && test -n \"$pid\" && ! test -e /proc/$pid && echo gone || true",
        )
    })?;
    node.end()
}

fn sysctls() -> Result<()> {
    let mut node = Node::prepare(&Settings {
        kubelet: json!({ "allowedUnsafeSysctls": ["net.core.somaxconn", "net.ipv4.conf.*"] }),
        ..Settings::default()
    })?;
    let mut network = cni::network(&node.world.root().join("leases"));
    let tuning = json!({ "type": "tuning", "sysctl": { "net.core.somaxconn": "222" } });
    network["plugins"].as_array_mut().context("plugins")?.push(tuning);
    cni::write(node.cni_conf(), &network)?;
    node.agent.start()?;
    let with = |name: &str, sysctl: &str, value: &str| {
        main_with(
            name,
            json!({}),
            json!({ "securityContext": { "sysctls": [{ "name": sysctl, "value": value }] } }),
        )
    };
    node.apply("safe", &with("safe", "net.ipv4.ip_local_port_range", "40000 50000"))?;
    // A plugin sets it for all, and has not the last word.
    node.apply("allowed", &with("allowed", "net.core.somaxconn", "333"))?;
    node.apply("plain", &main_with("plain", json!({}), json!({})))?;
    // It is there once CNI plugins have made the interface.
    node.apply("interface", &with("interface", "net.ipv4.conf.eth0.arp_notify", "1"))?;
    node.apply("shm", &with("shm", "kernel.shm_rmid_forced", "1"))?;
    node.apply("bad", &with("bad", "kernel.msgmax", "65536"))?;
    for (name, path, value) in [
        ("safe", "net/ipv4/ip_local_port_range", "40000\t50000"),
        ("allowed", "net/core/somaxconn", "333"),
        ("plain", "net/core/somaxconn", "222"),
        ("shm", "kernel/shm_rmid_forced", "1"),
        ("interface", "net/ipv4/conf/eth0/arp_notify", "1"),
    ] {
        let pod = node.ready(name)?;
        same(path, inside(&pod, &format!("cat /proc/sys/{path}"))?.as_str(), value)?;
        let told = events(&pod)?;
        ensure!(!told.contains("FailedCreatePodSandBox"), "{told}");
    }
    let bad = node.wait("bad", "Failed", POD_LIMIT, |pod| pod.phase() == "Failed")?;
    same("reason", bad.0["status"]["reason"].as_str(), Some("SysctlForbidden"))?;
    node.end()
}

fn names() -> Result<()> {
    let node = Node::start_with(&Settings {
        kubelet: json!({ "clusterDNS": ["10.96.0.10"], "clusterDomain": "cluster.local" }),
        ..Settings::default()
    })?;
    node.apply(
        "names",
        &main_with(
            "names",
            json!({}),
            json!({
                "hostname": "given", "subdomain": "sub",
                "hostAliases": [{ "ip": "10.1.2.3", "hostnames": ["alias.test", "other.test"] }],
                "dnsConfig": { "options": [{ "name": "timeout", "value": "1" }] },
            }),
        ),
    )?;
    node.apply("short", &sleeper("short"))?;
    let names = node.ready("names")?;
    same("hostname", inside(&names, "hostname")?.as_str(), "given")?;
    same("/etc/hostname", inside(&names, "cat /etc/hostname")?.as_str(), "given")?;
    let hosts = inside(&names, "cat /etc/hosts")?;
    ensure!(
        hosts.contains(&format!("{}\tgiven.sub.default.svc.cluster.local\tgiven", names.ip()?)),
        "{hosts}"
    );
    ensure!(hosts.contains("10.1.2.3\talias.test\tother.test"), "{hosts}");
    let resolver = inside(&names, "cat /etc/resolv.conf")?;
    for line in [
        "nameserver 10.96.0.10",
        "search default.svc.cluster.local svc.cluster.local cluster.local",
        "timeout:1",
        "ndots:5",
    ] {
        ensure!(resolver.contains(line), "no {line:?} in {resolver}");
    }
    let short = node.ready("short")?;
    same("hostname", inside(&short, "hostname")?.as_str(), short.name())?;
    node.end()
}

fn environment() -> Result<()> {
    let node = Node::start()?;
    let env = json!({ "env": [
        { "name": "PLAIN", "value": "one" },
        { "name": "REFERS", "value": "$(PLAIN)-two-$$(PLAIN)-$(ABSENT)" },
        { "name": "POD", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } },
        { "name": "NS", "valueFrom": { "fieldRef": { "fieldPath": "metadata.namespace" } } },
        { "name": "UID_", "valueFrom": { "fieldRef": { "fieldPath": "metadata.uid" } } },
        { "name": "IP", "valueFrom": { "fieldRef": { "fieldPath": "status.podIP" } } },
        { "name": "NODE", "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } },
        { "name": "LABEL", "valueFrom": { "fieldRef": { "fieldPath": "metadata.labels['app']" } } },
        { "name": "MEMORY", "valueFrom": { "resourceFieldRef": { "resource": "limits.memory" } } },
    ], "resources": { "limits": { "memory": "32Mi" } } });
    let manifest =
        pod("env", json!({ "containers": [shell("main", "env; echo ready; exec sleep infinity", env)] }));
    let mut manifest: Value = serde_json::from_str(&manifest)?;
    manifest["metadata"]["labels"] = json!({ "app": "lab" });
    node.apply("env", &manifest.to_string())?;
    let pod = node.ready("env")?;
    let said = logged(&pod, "main", "ready\n")?;
    for line in [
        "PLAIN=one".to_owned(),
        "REFERS=one-two-$(PLAIN)-$(ABSENT)".to_owned(),
        format!("POD={}", pod.name()),
        "NS=default".to_owned(),
        format!("UID_={}", pod.uid()),
        format!("IP={}", pod.ip()?),
        "NODE=lab".to_owned(),
        "LABEL=lab".to_owned(),
        "MEMORY=33554432".to_owned(),
        format!("HOSTNAME={}", pod.name()),
    ] {
        ensure!(said.lines().any(|one| one == line), "no {line:?} in {said}");
    }
    node.end()
}

fn descriptors() -> Result<()> {
    let node = Node::start()?;
    node.apply("fds", &script("fds", "ls /proc/self/fd; echo ready; exec sleep infinity"))?;
    let fds = node.ready("fds")?;
    // 0, 1, 2 and the directory that ls reads.
    same("descriptors", logged(&fds, "main", "ready\n")?.as_str(), "0\n1\n2\n3\nready\n")?;
    same("those of an exec", inside(&fds, "ls /proc/self/fd")?.as_str(), "0\n1\n2\n3")?;
    // A working directory through somebody's descriptor.
    for number in [3, 7, 8] {
        let name = format!("cwd-{number}");
        let path = format!("/proc/self/fd/{number}");
        let cwd = shell("main", "exec sleep infinity", json!({ "workingDir": path }));
        node.apply(&name, &pod(&name, json!({ "restartPolicy": "Never", "containers": [cwd] })))?;
        let refused =
            node.wait(&name, "refused", POD_LIMIT, |pod| pod.waits_for("main") == "CreateContainerError")?;
        let message = refused.container("main")["state"]["waiting"]["message"].as_str().unwrap_or_default();
        ensure!(message.contains(&format!("invalid working directory {path:?}")), "{message}");
    }
    node.end()
}

/// CVE-2021-41103, CVE-2024-25621: nobody but root may walk through state directories.
fn directories() -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let node = Node::start()?;
    node.apply("plain", &sleeper("plain"))?;
    let plain = node.ready("plain")?;
    for (path, most) in [
        ("/run/berth".to_owned(), 0o700),
        ("/run/berth/berth.sock".to_owned(), 0o600),
        ("/run/berth/agent.lock".to_owned(), 0o600),
        (format!("/run/berth/pods/{}.state", plain.uid()), 0o600),
        (format!("/run/berth/pods/{}.manifest", plain.uid()), 0o600),
        (format!("/var/lib/kubelet/pods/{}", plain.uid()), 0o750),
        (format!("/var/lib/kubelet/pods/{}/volumes", plain.uid()), 0o750),
    ] {
        let mode =
            fs::metadata(&path).with_context(|| format!("look at {path}"))?.permissions().mode() & 0o7777;
        ensure!(mode & !most == 0, "{path} has mode {mode:o}, more than {most:o}");
    }
    node.end()
}
