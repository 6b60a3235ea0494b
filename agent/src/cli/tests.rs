use std::ffi::OsString;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::{
    inspect,
    pods::{self, Columns},
    summary::summarize,
};
use crate::{
    control::{EventObject, HangingObject, Overview, PodObject, StalledLogObject},
    view::Problem,
};

fn now() -> Timestamp {
    "2026-11-21T08:00:00Z".parse().unwrap()
}

fn pod(init: &Value, main: &Value, status: &Value) -> Pod {
    let named = |statuses: &Value, policy: Option<&str>| -> Vec<Value> {
        let statuses = statuses.as_array().unwrap();
        statuses.iter().map(|one| json!({"name": one["name"], "image": "i", "restartPolicy": one["policy"].as_str().or(policy)})).collect()
    };
    let mut status = status.clone();
    let full = |statuses: &Value| -> Vec<Value> {
        let mut all = statuses.as_array().unwrap().clone();
        for one in &mut all {
            for (key, value) in [
                ("ready", json!(false)),
                ("restartCount", json!(0)),
                ("image", json!("i")),
                ("imageID", json!("")),
            ] {
                if one.get(key).is_none() {
                    one[key] = value;
                }
            }
        }
        all
    };
    status["initContainerStatuses"] = json!(full(init));
    status["containerStatuses"] = json!(full(main));
    serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web-node-1", "namespace": "default", "uid": "0b1c", "creationTimestamp": "2026-11-21T07:50:00Z"},
        "spec": {"nodeName": "node-1", "initContainers": named(init, None), "containers": named(main, None)},
        "status": status,
    }))
    .unwrap()
}

fn running(name: &str) -> Value {
    json!({"name": name, "ready": true, "started": true, "state": {"running": {"startedAt": "2026-11-21T07:51:00Z"}}})
}

fn ended(name: &str, code: i32, reason: &str) -> Value {
    json!({"name": name, "state": {"terminated": {"exitCode": code, "reason": reason}}})
}

fn waiting(name: &str, reason: &str) -> Value {
    json!({"name": name, "state": {"waiting": {"reason": reason}}})
}

#[test]
fn one_word_says_how_a_pod_is() {
    let mut crashing = waiting("a", "CrashLoopBackOff");
    crashing["restartCount"] = json!(4);
    crashing["lastState"] = json!({"terminated": {"exitCode": 1, "finishedAt": "2026-11-21T07:58:00Z"}});
    let mut sidecar = running("s");
    sidecar["policy"] = json!("Always");
    sidecar["restartCount"] = json!(2);
    let ready = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
    let pending = json!({"phase": "Pending"});
    for (init, main, status, expected) in [
        (json!([]), json!([running("a")]), json!({"phase": "Running"}), "1/1 Running 0"),
        (json!([]), json!([waiting("a", "ContainerCreating")]), pending.clone(), "0/1 ContainerCreating 0"),
        (json!([]), json!([crashing]), json!({"phase": "Running"}), "0/1 CrashLoopBackOff 4 (2m ago)"),
        (json!([]), json!([ended("a", 0, "Completed")]), json!({"phase": "Succeeded"}), "0/1 Completed 0"),
        (json!([]), json!([ended("a", 1, "Error")]), json!({"phase": "Failed"}), "0/1 Error 0"),
        (json!([]), json!([ended("a", 3, "")]), json!({"phase": "Failed"}), "0/1 ExitCode:3 0"),
        (json!([]), json!([]), json!({"phase": "Failed", "reason": "Evicted"}), "0/0 Evicted 0"),
        (json!([]), json!([ended("a", 0, "Completed"), running("b")]), ready, "1/2 Running 0"),
        (
            json!([]),
            json!([ended("a", 0, "Completed"), running("b")]),
            json!({"phase": "Running"}),
            "1/2 NotReady 0",
        ),
        (
            json!([waiting("i", "PodInitializing"), waiting("j", "PodInitializing")]),
            json!([waiting("a", "PodInitializing")]),
            pending.clone(),
            "0/1 Init:0/2 0",
        ),
        (
            json!([ended("i", 0, "Completed"), waiting("j", "PodInitializing")]),
            json!([waiting("a", "PodInitializing")]),
            pending.clone(),
            "0/1 Init:1/2 0",
        ),
        (
            json!([ended("i", 1, "Error")]),
            json!([waiting("a", "PodInitializing")]),
            pending.clone(),
            "0/1 Init:Error 0",
        ),
        (
            json!([ended("i", 1, "")]),
            json!([waiting("a", "PodInitializing")]),
            pending.clone(),
            "0/1 Init:ExitCode:1 0",
        ),
        (
            json!([waiting("i", "ImagePullBackOff")]),
            json!([waiting("a", "PodInitializing")]),
            pending,
            "0/1 Init:ImagePullBackOff 0",
        ),
        (json!([sidecar]), json!([running("a")]), json!({"phase": "Running"}), "2/2 Running 2"),
    ] {
        let sum = summarize(&pod(&init, &main, &status), now());
        assert_eq!(format!("{} {} {}", sum.ready, sum.status, sum.restarts), expected);
    }
}

#[test]
fn a_pod_that_is_being_stopped_is_terminating_until_it_has_ended() {
    let mut one = pod(&json!([]), &json!([running("a")]), &json!({"phase": "Running"}));
    one.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now()));
    assert_eq!(summarize(&one, now()).status, "Terminating");
    let mut over = pod(&json!([]), &json!([ended("a", 0, "Completed")]), &json!({"phase": "Succeeded"}));
    over.metadata.deletion_timestamp = one.metadata.deletion_timestamp;
    assert_eq!(summarize(&over, now()).status, "Completed");
}

fn object() -> PodObject {
    let mut status = json!({"phase": "Running", "podIP": "10.85.0.7", "podIPs": [{"ip": "10.85.0.7"}], "qosClass": "BestEffort"});
    status["conditions"] = json!([{"type": "Ready", "status": "False", "reason": "ContainersNotReady",
        "message": "containers with unready status: [b]", "lastTransitionTime": "2026-11-21T07:55:00Z"}]);
    let event = EventObject {
        severity: "Warning".to_owned(),
        reason: "BackOff".to_owned(),
        container: Some("b".to_owned()),
        message: "Back-off restarting failed container".to_owned(),
        count: 3,
        first: "2026-11-21T07:52:00Z".parse().unwrap(),
        last: "2026-11-21T07:59:00Z".parse().unwrap(),
    };
    PodObject {
        pod: pod(&json!([]), &json!([running("a"), waiting("b", "CrashLoopBackOff")]), &status),
        events: vec![event],
        unsupported: vec!["spec.containers[0].lifecycle".to_owned()],
        sandbox: Some("5a".to_owned()),
        log_root: "/var/log/pods".to_owned(),
        log_directory: "/var/log/pods/default_web-node-1_0b1c".to_owned(),
        hanging: vec![HangingObject {
            what: "volume data".to_owned(),
            path: "/mnt/nfs/data".to_owned(),
            since: "2026-11-21T07:58:00Z".parse().unwrap(),
            process: 4711,
        }],
        stalled_logs: vec![StalledLogObject {
            container: "a".to_owned(),
            since: "2026-11-21T07:59:30Z".parse().unwrap(),
        }],
    }
}

fn written(print: impl FnOnce(&mut Vec<u8>) -> std::io::Result<()>) -> String {
    let mut out = Vec::new();
    print(&mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn the_table_is_kubectls() {
    let problems =
        vec![Problem { place: "x.yaml".to_owned(), message: "x.yaml:1: spec: is missing".to_owned() }];
    let overview = Overview { pods: vec![object()], problems };
    let table = |columns, width| written(|out| pods::print(out, &overview, columns, width, now()));
    assert_eq!(
        table(Columns::Usual, None),
        "NAMESPACE   NAME         READY   STATUS             RESTARTS   IP          AGE\n\
         default     web-node-1   1/2     CrashLoopBackOff   0          10.85.0.7   10m\n\
         \nnot used: x.yaml\n  x.yaml:1: spec: is missing\n"
    );
    assert!(table(Columns::Wide, None).contains("AGE   QOS          UID\n"));
    for line in table(Columns::Usual, Some(60)).lines() {
        assert!(line.chars().count() <= 60, "{line}");
    }
    let nothing = Overview { pods: Vec::new(), problems: Vec::new() };
    assert_eq!(
        written(|out| pods::print(out, &nothing, Columns::Usual, None, now())),
        "no pods on this node\n"
    );
}

#[test]
fn inspect_tells_everything() {
    let text = written(|out| inspect::print(out, &object(), None, now()));
    assert_eq!(text, include_str!("tests/inspect.txt"), "{text}");
    let json = inspect::json(&object()).unwrap();
    assert_eq!(json["kind"], "Pod");
    assert_eq!(json["berth"]["hanging"][0]["path"], "/mnt/nfs/data");
    assert_eq!(json["berth"]["stalledLogs"][0]["container"], "a");
}

#[test]
fn exit_codes_are_as_documented() {
    let run = |arguments: &[&str]| {
        let code = super::main(arguments.iter().map(OsString::from));
        format!("{code:?}")
    };
    let code = |code: u8| format!("{:?}", std::process::ExitCode::from(code));
    for (arguments, expected) in [
        (&["berth", "pods", "--socket=/nowhere/berth.sock"][..], 3),
        (&["berth", "inspect", "x", "--socket=/nowhere/berth.sock"], 3),
        (&["berth", "exec", "x", "--socket=/nowhere/berth.sock", "--", "true"], 3),
        (&["berth", "exec", "x", "-t", "--", "true"], 2),
        (&["berth", "exec", "x", "-it", "-o", "json", "--", "true"], 2),
        (&["berth", "exec", "x"], 2),
        (&["berth", "exec", "x", "-o", "yaml", "--", "true"], 2),
        (&["berth", "logs", "x", "-o", "json", "--socket=/nowhere/berth.sock"], 3),
        (&["berth", "nonsense"], 2),
        (&["berth", "check-config", "--max-pods=x"], 2),
        (&["berth", "check-config", "--config=/nowhere.yaml"], 2),
        (&["kubelet", "--no-such-flag"], 2),
        (&["/usr/bin/kubelet", "--max-pods=x"], 2),
        (&["kubelet", "--version"], 0),
    ] {
        assert_eq!(run(arguments), code(expected), "{arguments:?}");
    }
}
