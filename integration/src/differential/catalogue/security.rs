//! What a container's process may do.

use serde_json::{Value, json};

use crate::differential::case::{Case, STAY, TELL};

pub(super) fn cases() -> Vec<Case> {
    [capabilities(), contexts(), seccomp(), namespaces(), sysctls()].concat()
}

fn of(name: &str, context: Value) -> Case {
    Case::telling(name, json!({ "securityContext": context }), json!({}))
}

fn of_pod(name: &str, fields: Value) -> Case {
    Case::telling(name, json!({}), fields)
}

fn capabilities() -> Vec<Case> {
    let caps = |name: &str, add: Value, drop: Value| {
        of(name, json!({ "capabilities": { "add": add, "drop": drop } }))
    };
    vec![
        caps("capabilities-some", json!(["NET_ADMIN", "SYS_TIME"]), json!(["CHOWN", "KILL"])),
        caps("capabilities-drop-all", json!([]), json!(["ALL"])),
        caps("capabilities-one", json!(["NET_BIND_SERVICE"]), json!(["ALL"])),
        caps("capabilities-lower-case", json!(["net_admin"]), json!(["mknod"])),
        caps("capabilities-prefixed", json!(["CAP_SYS_PTRACE"]), json!(["CAP_CHOWN"])),
        caps("capabilities-both", json!(["CHOWN"]), json!(["CHOWN"])),
        Case::telling(
            "capabilities-of-user",
            json!({ "securityContext": { "runAsUser": 1000, "capabilities": { "add": ["NET_ADMIN"] } } }),
            json!({}),
        ),
    ]
}

fn contexts() -> Vec<Case> {
    vec![
        of("no-escalation", json!({ "allowPrivilegeEscalation": false })),
        of("escalation", json!({ "allowPrivilegeEscalation": true })),
        of("read-only-root", json!({ "readOnlyRootFilesystem": true })),
        of("proc-mount-default", json!({ "procMount": "Default" })),
        of(
            "restricted",
            json!({ "allowPrivilegeEscalation": false, "runAsNonRoot": true, "runAsUser": 1000,
            "capabilities": { "drop": ["ALL"] }, "seccompProfile": { "type": "RuntimeDefault" } }),
        ),
        of("app-armor-unconfined", json!({ "appArmorProfile": { "type": "Unconfined" } })),
        of("app-armor-default", json!({ "appArmorProfile": { "type": "RuntimeDefault" } })),
        of("selinux-options", json!({ "seLinuxOptions": { "level": "s0:c1,c2" } })),
    ]
}

fn seccomp() -> Vec<Case> {
    let profile = |name: &str, profile: Value| of(name, json!({ "seccompProfile": profile }));
    let try_chmod = format!("{TELL}\ntouch /tmp/f; chmod 700 /tmp/f && echo may || echo may not; {STAY}");
    let local = json!({ "type": "Localhost", "localhostProfile": "profiles/no-chmod.json" });
    vec![
        profile("seccomp-default", json!({ "type": "RuntimeDefault" })),
        profile("seccomp-unconfined", json!({ "type": "Unconfined" })),
        Case::scripted(
            "seccomp-local",
            &try_chmod,
            json!({ "securityContext": { "seccompProfile": local } }),
            json!({}),
        ),
        of_pod(
            "seccomp-pod-default",
            json!({ "securityContext": { "seccompProfile": { "type": "RuntimeDefault" } } }),
        ),
        Case::scripted(
            "seccomp-pod-local",
            &try_chmod,
            json!({}),
            json!({ "securityContext": { "seccompProfile": local } }),
        ),
        Case::telling(
            "seccomp-default-with-capabilities",
            json!({ "securityContext": { "seccompProfile": { "type": "RuntimeDefault" }, "capabilities": { "add": ["SYS_PTRACE", "BPF"] } } }),
            json!({}),
        ),
        Case::telling(
            "seccomp-default-with-all-capabilities",
            json!({ "securityContext": { "seccompProfile": { "type": "RuntimeDefault" }, "capabilities": { "add": ["ALL"] } } }),
            json!({}),
        ),
    ]
}

fn namespaces() -> Vec<Case> {
    let processes = format!("{TELL}\necho '== ps'; ps -o comm | sort | uniq; {STAY}");
    vec![
        of_pod("host-network", json!({ "hostNetwork": true })),
        of_pod(
            "host-network-cluster-first",
            json!({ "hostNetwork": true, "dnsPolicy": "ClusterFirstWithHostNet" }),
        ),
        of_pod("host-pid", json!({ "hostPID": true })),
        of_pod("host-ipc", json!({ "hostIPC": true })),
        of_pod("host-all", json!({ "hostNetwork": true, "hostPID": true, "hostIPC": true })),
        Case::scripted("shared-processes", &processes, json!({}), json!({ "shareProcessNamespace": true })),
        of_pod("shared-processes-not", json!({ "shareProcessNamespace": false })),
    ]
}

fn sysctls() -> Vec<Case> {
    let script = format!(
        "{TELL}\ncat /proc/sys/kernel/shm_rmid_forced /proc/sys/net/ipv4/ip_unprivileged_port_start; {STAY}"
    );
    let of = |name: &str, all: Value| {
        Case::scripted(name, &script, json!({}), json!({ "securityContext": { "sysctls": all } }))
    };
    vec![
        of("sysctls", json!([{ "name": "kernel.shm_rmid_forced", "value": "1" }])),
        of(
            "sysctls-of-network",
            json!([{ "name": "net.ipv4.ip_unprivileged_port_start", "value": "80" },
            { "name": "net.ipv4.ip_local_port_range", "value": "20000 30000" }]),
        ),
        of("sysctls-unsafe", json!([{ "name": "kernel.msgmax", "value": "65536" }])),
        of("sysctls-none", json!([{ "name": "net.ipv4.tcp_syncookies", "value": "1" }])),
    ]
}
