//! How pods go and end: policies, codes, init containers, sidecars, hooks, messages, deadlines.

use serde_json::{Value, json};

use super::{backs_off, is_over, is_ready, never, restarts};
use crate::differential::case::{Case, STAY, TELL, shell, with};

pub(super) fn cases() -> Vec<Case> {
    [policies(), rules(), inits(), hooks(), messages(), ends()].concat()
}

fn policies() -> Vec<Case> {
    let of = |name: &str, script: &str, policy: &str| {
        Case::scripted(name, script, json!({}), json!({ "restartPolicy": policy }))
    };
    vec![
        of("never-well", "echo well", "Never").until(is_over),
        of("never-badly", "echo badly >&2; exit 3", "Never").until(is_over),
        of("never-by-signal", "kill -SEGV $$", "Never").until(is_over),
        of("never-255", "exit 255", "Never").until(is_over),
        of("on-failure-well", "true", "OnFailure"),
        of("on-failure-badly", "exit 1", "OnFailure").until(backs_off),
        of("always-well", "true", "Always").until(backs_off),
        of("always-badly", "exit 137", "Always").until(backs_off),
        of("on-failure-killed", STAY, "OnFailure").dies(),
        of("never-killed", STAY, "Never").dies(),
        Case::of(
            "never-one-of-two",
            with(
                never(),
                json!({ "containers": [
            shell("main", "exit 2", json!({})), shell("other", STAY, json!({})) ] }),
            ),
        ),
        Case::of(
            "never-both",
            with(
                never(),
                json!({ "containers": [
            shell("main", "exit 0", json!({})), shell("other", "exit 4", json!({})) ] }),
            ),
        ),
    ]
}

fn rules() -> Vec<Case> {
    let rule = |action: &str, operator: &str, codes: Value| json!([{ "action": action, "exitCodes": { "operator": operator, "values": codes } }]);
    let of =
        |name: &str, script: &str, container: Value, pod: Value| Case::scripted(name, script, container, pod);
    let once =
        "n=$(cat /v/n 2>/dev/null || echo 0); echo $((n + 1)) >/v/n; [ $n -ge 1 ] && sleep infinity; exit 42";
    let kept = json!({ "volumeMounts": [{ "name": "v", "mountPath": "/v" }] });
    let volume = json!({ "volumes": [{ "name": "v", "emptyDir": {} }] });
    vec![
        of("container-never", "exit 5", json!({ "restartPolicy": "Never" }), json!({})),
        of("container-on-failure", "exit 0", json!({ "restartPolicy": "OnFailure" }), json!({})),
        of(
            "container-rule-restarts",
            once,
            with(
                kept.clone(),
                json!({ "restartPolicy": "Never", "restartPolicyRules": rule("Restart", "In", json!([42])) }),
            ),
            with(volume.clone(), never()),
        )
        .until(|pod| {
            restarts(pod) == 1 && pod["status"]["containerStatuses"][0]["state"]["running"].is_object()
        }),
        of(
            "container-rule-not",
            "exit 1",
            json!({ "restartPolicy": "Never", "restartPolicyRules": rule("Restart", "NotIn", json!([1])) }),
            never(),
        ),
        of(
            "container-always-in-never",
            once,
            with(kept, json!({ "restartPolicy": "Always" })),
            with(volume, never()),
        )
        .until(|pod| {
            restarts(pod) == 1 && pod["status"]["containerStatuses"][0]["state"]["running"].is_object()
        }),
    ]
}

fn inits() -> Vec<Case> {
    let init = |all: Value, more: Value| with(json!({ "initContainers": all }), more);
    let telling = |name: &str, pod: Value| Case::telling(name, json!({}), pod);
    let sidecar =
        |script: &str, more: Value| with(shell("beside", script, json!({ "restartPolicy": "Always" })), more);
    let probe = json!({ "exec": { "command": ["true"] }, "periodSeconds": 1 });
    // Of the sidecar the first run alone starts, and main containers wait for the next ones.
    let once = "if [ -e /v/begun ]; then sleep 3; else until [ -e /v/begun ]; do sleep 0.1; done; fi; exit 1";
    let first = json!({ "exec": { "command": ["test", "!", "-e", "/v/begun"] }, "periodSeconds": 1, "failureThreshold": 100 });
    let kept = json!({ "volumeMounts": [{ "name": "v", "mountPath": "/v" }] });
    let volume = json!({ "volumes": [{ "name": "v", "emptyDir": {} }] });
    vec![
        telling(
            "init-two",
            init(json!([shell("one", "echo 1", json!({})), shell("two", "echo 2", json!({}))]), json!({})),
        ),
        telling("init-fails", init(json!([shell("one", "exit 3", json!({}))]), never())),
        telling("init-fails-again", init(json!([shell("one", "exit 3", json!({}))]), json!({})))
            .until(backs_off),
        telling("init-runs", init(json!([shell("one", STAY, json!({}))]), json!({}))),
        telling(
            "init-and-sidecar",
            init(
                json!([shell("one", TELL, json!({})), sidecar(&format!("{TELL}\n{STAY}"), json!({}))]),
                json!({}),
            ),
        )
        .until(is_ready),
        telling("sidecar-started", init(json!([sidecar(STAY, json!({ "startupProbe": probe }))]), json!({})))
            .until(is_ready),
        telling("sidecar-ready", init(json!([sidecar(STAY, json!({ "readinessProbe": probe }))]), json!({})))
            .until(is_ready),
        Case::scripted(
            "sidecar-of-a-job",
            "sleep 1; echo done",
            json!({}),
            init(json!([sidecar(STAY, json!({}))]), never()),
        ),
        Case::scripted(
            "sidecar-and-main-end",
            "touch /v/begun; sleep 1; exit 1",
            kept.clone(),
            init(json!([sidecar(once, with(kept, json!({ "startupProbe": first })))]), volume),
        )
        .until(|pod| pod["status"]["initContainerStatuses"][0]["restartCount"] == 2),
        // Long enough that a kubelet, which looks once a second, sees it run.
        telling("sidecar-crashes", init(json!([sidecar("sleep 3; exit 1", json!({}))]), json!({})))
            .until(backs_off),
    ]
}

fn hooks() -> Vec<Case> {
    let exec = |script: &str| json!({ "exec": { "command": ["/bin/sh", "-c", script] } });
    let scripted = |name: &str, script: &str, lifecycle: Value| {
        Case::scripted(name, script, json!({ "lifecycle": lifecycle }), json!({}))
    };
    let of = |name: &str, lifecycle: Value| scripted(name, STAY, lifecycle);
    // It is killed in its first moments, in which a script may have no trap yet.
    let failing = |name: &str, hook: Value| {
        scripted(name, "exec sleep infinity", json!({ "postStart": hook })).until(backs_off)
    };
    let nobody = json!({ "httpGet": { "port": 81, "path": "/x" } });
    vec![
        of("post-start", json!({ "postStart": exec("echo begun >/proc/1/fd/1") })),
        of("post-start-sleeps", json!({ "postStart": { "sleep": { "seconds": 1 } } })),
        failing("post-start-fails", exec("echo why; exit 7")),
        failing("post-start-absent", json!({ "exec": { "command": ["/absent"] } })),
        failing("post-start-http-fails", nobody.clone()),
        of("pre-stop", json!({ "preStop": exec("echo ends >/proc/1/fd/1") })),
        of("pre-stop-sleeps", json!({ "preStop": { "sleep": { "seconds": 1 } } })),
        of("pre-stop-fails", json!({ "preStop": exec("echo why not; exit 9") })),
        of("pre-stop-http-fails", json!({ "preStop": nobody })),
        of("pre-stop-too-long", json!({ "preStop": exec("sleep 60") })),
        of("stop-signal", json!({ "stopSignal": "SIGUSR1" })),
    ]
}

fn messages() -> Vec<Case> {
    let of =
        |name: &str, script: &str, more: Value| Case::scripted(name, script, more, never()).until(is_over);
    let from_logs = json!({ "terminationMessagePolicy": "FallbackToLogsOnError" });
    vec![
        of("message", "printf 'two\\nlines' >/dev/termination-log", json!({})),
        of("message-long", "head -c 5000 /dev/zero | tr '\\0' x >/dev/termination-log; exit 1", json!({})),
        of(
            "message-path",
            "echo there >/tmp/ended; exit 1",
            json!({ "terminationMessagePath": "/tmp/ended" }),
        ),
        of("message-from-logs", "echo from; echo logs; exit 1", from_logs.clone()),
        of("message-from-logs-well", "echo from logs", from_logs.clone()),
        of(
            "message-from-logs-long",
            "n=0; while [ $n -lt 200 ]; do echo line $n; n=$((n+1)); done; exit 1",
            from_logs.clone(),
        ),
        of("message-over-logs", "echo log; echo file >/dev/termination-log; exit 1", from_logs),
        of("message-bytes", "printf 'a\\377b' >/dev/termination-log", json!({})),
        of(
            "log-forms",
            "printf 'no end'; printf '\\n\\n'; printf 'err\\n' >&2; head -c 40000 /dev/zero | tr '\\0' y; echo; printf 'last'",
            json!({}),
        ),
    ]
}

fn ends() -> Vec<Case> {
    let over = |pod: &Value| pod["status"]["phase"] == "Failed";
    vec![
        Case::scripted("deadline", STAY, json!({}), json!({ "activeDeadlineSeconds": 20 })).until(over),
        Case::scripted(
            "deadline-of-ended",
            "true",
            json!({}),
            with(never(), json!({ "activeDeadlineSeconds": 60 })),
        )
        .until(is_over),
        Case::scripted("grace-none", STAY, json!({}), json!({ "terminationGracePeriodSeconds": 0 })),
        Case::scripted(
            "grace-ignored",
            "trap '' TERM; while :; do sleep 1; done",
            json!({}),
            json!({ "terminationGracePeriodSeconds": 1 }),
        ),
        Case::scripted(
            "ends-with-code",
            "trap 'exit 9' TERM; while :; do sleep 0.1; done",
            json!({}),
            json!({}),
        ),
        Case::scripted(
            "memory-kill",
            "head -c 100m /dev/zero | tail",
            json!({ "resources": { "limits": { "memory": "16Mi" } } }),
            never(),
        ),
    ]
}
