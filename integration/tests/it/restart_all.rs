//! All containers of a pod begin anew, in the sandbox that it has, when one of them ends with a code for which its rules ask for that
//! (KEP-5532). What they do is written into a directory of the test, line by line.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use berth_integration::node::{Node, POD_LIMIT, PodState};
use serde_json::{Value, json};

use crate::kit::{FOR_EVER, events, eventually, pod, shell, with};
use crate::lives::shim_of;
use crate::suite::{Test, same, test};
use crate::told::Told;

/// The code for which all begin anew.
const CODE: u32 = 42;

const CONTAINERS: [&str; 4] = ["init", "side", "main", "other"];

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("restart_all::a_code_of_one_begins_all_anew_in_the_same_sandbox", of_a_main_container),
        test("restart_all::init_containers_and_sidecars_call_for_it_too", of_others),
        test("restart_all::an_agent_that_is_killed_on_the_way_goes_on", killed),
    ]
}

/// A container that tells that it runs, and then does something.
fn tells(name: &str, then: &str, more: Value) -> Value {
    let mounts = json!([{ "name": "told", "mountPath": "/told" }, { "name": "kept", "mountPath": "/kept" }]);
    let script = format!("echo {name} >> /told/all; {then}");
    shell(name, &script, with(json!({ "volumeMounts": mounts }), more))
}

fn rules() -> Value {
    let on = json!({ "operator": "In", "values": [CODE] });
    json!([{ "action": "RestartAllContainers", "exitCodes": on }])
}

/// Ends with the code once, when a door is open.
fn ends_once() -> String {
    format!(
        "test -e /kept/ended && exec sleep infinity; while ! test -e /told/door; do sleep 0.05; done; touch /kept/ended; exit {CODE}"
    )
}

/// A pod that never runs anything again but for that; `main` calls for it. `other` does not end by its stop signal and has a hook before
/// that, which nobody runs.
fn manifest(told: &Told) -> String {
    let pre_stop =
        json!({ "preStop": { "exec": { "command": ["/bin/sh", "-c", "echo hook >> /told/all"] } } });
    let init = "test -e /kept/ended && while ! test -e /told/init; do sleep 0.05; done; exit 0";
    pod(
        "web",
        json!({
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 20,
            "initContainers": [
                tells("init", init, json!({})),
                tells("side", FOR_EVER, json!({ "restartPolicy": "Always" })),
            ],
            "containers": [
                tells("main", &ends_once(), json!({ "restartPolicy": "Never", "restartPolicyRules": rules() })),
                tells("other", "exec sleep infinity", json!({ "lifecycle": pre_stop })),
            ],
            "volumes": volumes(told),
        }),
    )
}

fn volumes(told: &Told) -> Value {
    json!([told.volume(), { "name": "kept", "emptyDir": {} }])
}

fn restarting(pod: &PodState) -> Option<(String, String)> {
    let conditions = pod.0["status"]["conditions"].as_array()?;
    let one = conditions.iter().find(|one| one["type"] == "AllContainersRestarting")?;
    let text = |field: &str| one[field].as_str().unwrap_or_default().to_owned();
    Some((text("status"), text("reason")))
}

fn is_restarting(pod: &PodState) -> bool {
    restarting(pod) == Some(("True".to_owned(), "RestartAllContainersStarted".to_owned()))
}

/// Each runs for the second time, and says how its first run ended.
fn check_second(web: &PodState, told: &Told) -> Result<()> {
    same("restarts", CONTAINERS.map(|one| web.restarts(one)), [1; 4])?;
    same("condition", restarting(web), Some(("False".to_owned(), String::new())))?;
    let last = |name: &str| {
        let end = web.container(name)["lastState"]["terminated"].clone();
        (end["exitCode"].as_u64().unwrap_or_default(), end["reason"].as_str().unwrap_or_default().to_owned())
    };
    same("how main ended", last("main"), (u64::from(CODE), "Error".to_owned()))?;
    same("how init ended", last("init"), (0, "Completed".to_owned()))?;
    same("how other ended", last("other"), (137, "RestartingAllContainers".to_owned()))?;
    same("how side ended", last("side").1.as_str(), "RestartingAllContainers")?;
    let lines = told.all()?;
    same("runs", lines.len(), 8)?;
    lines.chunks(4).try_for_each(check_round)
}

/// Each ran once, and init first.
fn check_round(lines: &[String]) -> Result<()> {
    let ran: BTreeSet<&str> = lines.iter().map(String::as_str).collect();
    same("what ran", ran, BTreeSet::from(CONTAINERS))?;
    same("what ran first", lines[0].as_str(), "init")
}

/// The pod, all of whose containers have told that they run so often.
fn told_of(node: &Node, told: &Told, runs: usize) -> Result<PodState> {
    eventually("all to tell", &(4 * runs), || Ok(told.all()?.len()))?;
    node.ready("web")
}

fn of_a_main_container() -> Result<()> {
    let node = Node::start()?;
    let told = Told::new("restart-all", "main")?;
    node.apply("web", &manifest(&told))?;
    let before = told_of(&node, &told, 1)?;
    let (ip, shim) = (before.ip()?, shim_of(&before)?);
    same("condition before", restarting(&before), Some(("False".to_owned(), String::new())))?;

    told.open("door")?;
    node.wait("web", "to tell that it begins anew", POD_LIMIT, is_restarting)?;
    let anew =
        node.wait("web", "its init container to run again", POD_LIMIT, |pod| pod.restarts("init") == 1)?;
    same("its phase meanwhile", anew.phase(), "Pending")?;
    for name in ["side", "main", "other"] {
        same(name, (anew.waits_for(name), anew.restarts(name)), ("PodInitializing", 0))?;
    }
    told.open("init")?;
    let after = told_of(&node, &told, 2)?;
    check_second(&after, &told)?;
    same("address and sandbox", (after.ip()?, shim_of(&after)?), (ip, shim))?;
    let shown = events(&after)?;
    ensure!(shown.contains("Killing") && !shown.contains("FailedPreStopHook"), "{shown}");
    node.clear()?;
    node.end()
}

fn of_others() -> Result<()> {
    let node = Node::start()?;
    for source in ["init", "side"] {
        let told = Told::new("restart-all", source)?;
        told.open("door")?;
        let rule = |policy: &str| json!({ "restartPolicy": policy, "restartPolicyRules": rules() });
        let init = format!("test -e /kept/ended && exit 0; touch /kept/ended; exit {CODE}");
        let init_containers = match source {
            "init" => json!([tells("init", &init, rule("Never"))]),
            _ => json!([tells("init", "exit 0", json!({})), tells("side", &ends_once(), rule("Always"))]),
        };
        let main = tells("main", "exec sleep infinity", json!({}));
        let spec = json!({ "restartPolicy": "Never", "initContainers": init_containers,
            "containers": [main], "volumes": volumes(&told) });
        node.apply(source, &pod(source, spec))?;
        let began_anew = |pod: &PodState| pod.restarts("init") == 1 && pod.phase() == "Running";
        node.wait(source, "to begin anew", POD_LIMIT, began_anew)?;
        node.ready(source)?;
        let lines = told.all()?;
        let at =
            |name: &str| lines.iter().rposition(|line| line == name).with_context(|| format!("{lines:?}"));
        ensure!(at("init")? < at("main")?, "{lines:?}");
        same("runs of init", lines.iter().filter(|line| *line == "init").count(), 2)?;
        node.remove(source)?;
        node.gone(source)?;
    }
    node.end()
}

/// While the others are stopped, and while they begin.
fn killed() -> Result<()> {
    let mut node = Node::start()?;
    let told = Told::new("restart-all", "killed")?;
    node.apply("web", &manifest(&told))?;
    let before = told_of(&node, &told, 1)?;
    let (ip, shim) = (before.ip()?, shim_of(&before)?);
    told.open("door")?;
    node.wait("web", "to tell that it begins anew", POD_LIMIT, is_restarting)?;
    node.agent.kill()?;
    node.agent.start()?;
    node.wait("web", "its init container to run again", POD_LIMIT, |pod| pod.restarts("init") == 1)?;
    node.agent.kill()?;
    told.open("init")?;
    node.agent.start()?;
    let web = told_of(&node, &told, 2)?;
    check_second(&web, &told)?;
    same("address and sandbox", (web.ip()?, shim_of(&web)?), (ip, shim))?;
    node.clear()?;
    node.end()
}
