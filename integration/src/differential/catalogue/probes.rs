//! Probes, and what comes of them.

use serde_json::{Value, json};

use super::{is_ready, restarts};
use crate::differential::case::{Case, STAY};

pub(super) fn cases() -> Vec<Case> {
    let exec = |script: &str| json!({ "exec": { "command": ["/bin/sh", "-c", script] }, "periodSeconds": 1, "timeoutSeconds": 30 });
    let tcp = |port: u16| json!({ "tcpSocket": { "port": port }, "periodSeconds": 1 });
    let http = |path: &str| json!({ "httpGet": { "port": 8080, "path": path }, "periodSeconds": 1 });
    let with = |probe: Value, more: Value| crate::differential::case::with(probe, more);
    let of = |name: &str, script: &str, probes: Value| Case::scripted(name, script, probes, json!({}));
    let serve = format!("mkdir -p /www; echo hi >/www/index.html; httpd -p 8080 -h /www; {STAY}");
    let anew = |pod: &Value| {
        restarts(pod) == 1 && pod["status"]["containerStatuses"][0]["state"]["running"].is_object()
    };
    let once = json!({ "failureThreshold": 1, "initialDelaySeconds": 8 });
    vec![
        of("ready", STAY, json!({ "readinessProbe": exec("true") })).until(is_ready),
        of("ready-never", STAY, json!({ "readinessProbe": exec("echo not yet; exit 1") })),
        of("ready-by-tcp", &serve, json!({ "readinessProbe": tcp(8080) })).until(is_ready),
        of("ready-by-http", &serve, json!({ "readinessProbe": http("/") })).until(is_ready),
        of("ready-not-by-http", &serve, json!({ "readinessProbe": http("/absent") })),
        of("ready-not-by-tcp", STAY, json!({ "readinessProbe": tcp(9) })),
        of("ready-no-such-command", STAY, json!({ "readinessProbe": { "exec": { "command": ["/absent"] }, "periodSeconds": 1 } })),
        of("ready-not-in-time", STAY, json!({ "readinessProbe": { "exec": { "command": ["sleep", "30"] }, "periodSeconds": 1, "timeoutSeconds": 1 } })),
        of("alive", STAY, json!({ "livenessProbe": exec("true") })),
        of("alive-once", "n=$(cat /n 2>/dev/null); echo 1 >/n; trap 'exit 4' TERM; sleep infinity & while :; do wait; done",
            json!({ "livenessProbe": with(exec("exit 1"), once.clone()) })).until(anew),
        of("alive-not-by-tcp", STAY, json!({ "livenessProbe": with(tcp(9), once.clone()) })).until(anew),
        of("alive-own-grace", "trap '' TERM; while :; do sleep 1; done",
            json!({ "livenessProbe": with(exec("exit 1"), with(once, json!({ "terminationGracePeriodSeconds": 1 }))) })).until(anew),
        of("started", STAY, json!({ "startupProbe": exec("true") })).until(is_ready),
        of("started-never", STAY, json!({ "startupProbe": with(exec("exit 1"), json!({ "failureThreshold": 2, "initialDelaySeconds": 8 })) })).until(anew),
        of("started-not-yet", STAY, json!({ "startupProbe": with(exec("exit 1"), json!({ "failureThreshold": 600 })) })),
    ]
}
