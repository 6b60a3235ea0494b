//! Hooks of real containers. What they do is written into a directory of the test, line by line.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use berth_integration::node::{Node, POD_LIMIT, PodState};
use serde_json::{Value, json};

use crate::kit::{FOR_EVER, SOON, events, eventually, pod, shell, with};
use crate::lives::Identity;
use crate::probes::server::{Mode, Server};
use crate::suite::{Test, same, test};
use crate::told::Told;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("hooks::each_has_its_place_in_the_life_of_a_container", order),
        test("hooks::by_http_whatever_is_answered", http),
        test("hooks::one_that_fails_after_the_start_ends_its_container", failing),
        test("hooks::one_that_hangs_holds_up_its_own_pod_alone", hanging),
        test("hooks::one_that_was_not_over_when_the_agent_was_killed_is_run_again", killed),
        test("hooks::the_stop_signal_of_a_container_counts_before_its_images", stop_signal),
    ]
}

/// A pod whose containers can tell.
fn pod_of(told: &Told, name: &str, spec: Value) -> String {
    pod(name, with(json!({ "volumes": [told.volume()] }), spec))
}

/// A container that can tell.
fn tells(name: &str, script: &str, lifecycle: Value) -> Value {
    let mounts = json!([{ "name": "told", "mountPath": "/told" }]);
    shell(name, script, json!({ "volumeMounts": mounts, "lifecycle": lifecycle }))
}

fn exec(script: &str) -> Value {
    json!({ "exec": { "command": ["/bin/sh", "-c", script] } })
}

fn tell(what: &str) -> String {
    format!("echo {what} >> /told/all")
}

fn wait_for(door: &str) -> String {
    format!("while ! test -e /told/{door}; do sleep 0.05; done")
}

fn order() -> Result<()> {
    let node = Node::start()?;
    let told = Told::new("hooks", "order")?;
    let script = |name: &str| {
        format!(
            "{}; trap '{}; exit 0' TERM; {FOR_EVER}",
            tell(&format!("{name}-runs")),
            tell(&format!("{name}-term"))
        )
    };
    let post_start = exec(&format!("{}; {}; {}", tell("first-post"), wait_for("door"), tell("first-posted")));
    let pre_stop = exec(&format!("{}; sleep 1; {}", tell("first-pre"), tell("first-pred")));
    let spec = json!({ "terminationGracePeriodSeconds": 60, "containers": [
        tells("first", &script("first"), json!({ "postStart": post_start, "preStop": pre_stop })),
        tells("second", &script("second"), json!({ "preStop": { "sleep": { "seconds": 3 } } })),
    ] });
    node.apply("web", &pod_of(&told, "web", spec))?;
    let begun = || Ok(told.all()?.iter().any(|line| line == "first-post"));
    eventually("the first hook", &true, begun)?;
    // What shows is what showed before, and what comes after has not begun.
    let web = node.wait("web", "to be shown", POD_LIMIT, |pod| pod.phase() == "Pending")?;
    same("the first", web.waits_for("first"), "ContainerCreating")?;
    same("the second", web.waits_for("second"), "ContainerCreating")?;
    ensure!(!told.all()?.iter().any(|line| line == "second-runs"), "{:?}", told.all()?);
    told.open("door")?;
    node.ready("web")?;
    eventually("the second to run", &4, || Ok(told.all()?.len()))?;
    let mut started = told.all()?;
    same("the last to start", started.pop().as_deref(), Some("second-runs"))?;
    same("before it", started.pop().as_deref(), Some("first-posted"))?;

    let began = Instant::now();
    node.remove("web")?;
    node.gone("web")?;
    ensure!(began.elapsed() >= Duration::from_secs(3), "it slept for {:?}", began.elapsed());
    let ended: Vec<String> = told.all()?.split_off(4);
    same(
        "its end",
        ended,
        ["first-pre", "first-pred", "first-term", "second-term"].map(str::to_owned).to_vec(),
    )?;
    node.end()
}

fn http() -> Result<()> {
    let node = Node::start()?;
    let server = Server::http()?;
    server.set(Mode::Bad);
    let get = |path: &str, scheme: &str| json!({ "httpGet": { "host": "127.0.0.1", "port": server.port(), "path": path, "scheme": scheme } });
    let lifecycle = json!({ "postStart": get("/post", "HTTP"), "preStop": get("/pre", "HTTP") });
    let spec = json!({ "containers": [shell("main", FOR_EVER, json!({ "lifecycle": lifecycle }))] });
    node.apply("web", &pod("web", with(json!({ "hostNetwork": true }), spec)))?;
    let web = node.ready("web")?;
    same("after the start", (server.count("/post"), server.count("/pre")), (1, 0))?;
    same("restarts", web.restarts("main"), 0)?;
    node.remove("web")?;
    node.gone("web")?;
    same("before the end", (server.count("/post"), server.count("/pre")), (1, 1))?;
    node.end()
}

fn failing() -> Result<()> {
    let node = Node::start()?;
    let told = Told::new("hooks", "failing")?;
    let script = format!("trap '{}; exit 0' TERM; {FOR_EVER}", tell("term"));
    let lifecycle = json!({
        "postStart": exec("echo secret; echo more >&2; exit 3"),
        "preStop": exec(&tell("pre")),
    });
    let spec = json!({ "restartPolicy": "OnFailure", "containers": [tells("main", &script, lifecycle)] });
    node.apply("web", &pod_of(&told, "web", spec))?;
    // It ended well, so its policy lets it rest.
    let web = node.wait("web", "to have ended", POD_LIMIT, |pod| pod.phase() == "Succeeded")?;
    same("restarts", web.restarts("main"), 0)?;
    same("its end", told.all()?, ["pre", "term"].map(str::to_owned).to_vec())?;
    let events = events(&web)?;
    for text in ["PostStartHook failed", "FailedPostStartHook"] {
        ensure!(events.contains(text), "{text:?} is not in {events}");
    }
    ensure!(!events.contains("secret"), "{events}");

    let again = tells("main", FOR_EVER, json!({ "postStart": exec("echo no; exit 3") }));
    node.apply("again", &pod_of(&told, "again", json!({ "containers": [again] })))?;
    let again =
        node.wait("again", "to be told why", POD_LIMIT, |pod| pod.waits_for("main") == "PostStartHookError")?;
    let message =
        again.container("main")["state"]["waiting"]["message"].as_str().unwrap_or_default().to_owned();
    for text in [
        "Exec lifecycle hook ([/bin/sh -c echo no; exit 3]) for Container \"main\" in Pod \"again-lab_default(",
        "exited with 3",
        "message: \"no\\n\"",
    ] {
        ensure!(message.contains(text), "{text:?} is not in {message}");
    }
    node.wait("again", "to wait", POD_LIMIT, |pod| pod.waits_for("main") == "CrashLoopBackOff")?;
    node.clear()?;
    node.end()
}

fn hanging() -> Result<()> {
    let node = Node::start()?;
    let told = Told::new("hooks", "hanging")?;
    let server = Server::http()?;
    server.set(Mode::Silent);
    let get = json!({ "httpGet": { "host": "127.0.0.1", "port": server.port(), "path": "/hangs" } });
    let stuck = exec(&format!("{}; exec sleep infinity", tell("hangs")));
    for (name, hook) in [("command", stuck), ("server", get)] {
        let lifecycle = json!({ "postStart": hook });
        let spec = json!({ "hostNetwork": true, "containers": [tells("main", FOR_EVER, lifecycle)] });
        node.apply(name, &pod_of(&told, name, spec))?;
    }
    eventually("the command to hang", &1, || Ok(told.all()?.len()))?;
    server.asked("/hangs", 1)?;
    node.apply("other", &pod("other", json!({ "containers": [shell("main", FOR_EVER, json!({}))] })))?;
    node.ready("other")?;
    for name in ["command", "server"] {
        let pod = node.wait(name, "to tell that its hook hangs", POD_LIMIT, |pod| {
            pod.container("main")["state"]["waiting"]["message"] == "its postStart hook has not ended"
        })?;
        same(name, (pod.waits_for("main"), pod.phase()), ("ContainerCreating", "Pending"))?;
        same("clients that have left", server.left(), 0)?;
        let shown = events(&pod)?;
        ensure!(shown.contains("its postStart hook has not ended"), "{shown}");
        node.remove(name)?;
        node.gone(name)?;
    }
    same("who was asked", server.count("/hangs"), 1)?;
    // Nobody waits for its answer any more.
    eventually("the client to have left", &1, || Ok(server.left()))?;
    // Before its stop, a hook that hangs has the grace period alone.
    let lifecycle = json!({ "preStop": exec("exec sleep infinity") });
    node.apply(
        "slow",
        &pod_of(&told, "slow", json!({ "containers": [tells("main", FOR_EVER, lifecycle)] })),
    )?;
    node.ready("slow")?;
    node.remove("slow")?;
    node.gone("slow")?;
    node.clear()?;
    node.end()
}

fn killed() -> Result<()> {
    let mut node = Node::start()?;
    let told = Told::new("hooks", "killed")?;
    let post_start = exec(&format!("{}; {}; {}", tell("post"), wait_for("door"), tell("posted")));
    let pre_stop = exec(&format!("{}; {}; {}", tell("pre"), wait_for("exit"), tell("pred")));
    let script = format!("{}; trap '{}; exit 0' TERM; {FOR_EVER}", tell("runs"), tell("term"));
    let main = tells("main", &script, json!({ "postStart": post_start, "preStop": pre_stop }));
    let next = tells("next", &format!("{}; {FOR_EVER}", tell("next")), json!({}));
    let spec = json!({ "terminationGracePeriodSeconds": 60, "containers": [main, next] });
    node.apply("web", &pod_of(&told, "web", spec))?;
    let lines = |line: &str| -> Result<usize> { Ok(told.all()?.iter().filter(|one| *one == line).count()) };
    eventually("the hook", &1, || lines("post"))?;
    node.agent.kill()?;
    node.agent.start()?;
    eventually("the hook again", &2, || lines("post"))?;
    same("what comes after it", lines("next")?, 0)?;
    told.open("door")?;
    let web = node.ready("web")?;
    let before = Identity::of(&web)?;
    same("runs", (lines("runs")?, lines("next")?, web.restarts("main")), (1, 1, 0))?;

    node.remove("web")?;
    eventually("the last hook", &1, || lines("pre"))?;
    node.agent.kill()?;
    node.agent.start()?;
    eventually("the last hook again", &2, || lines("pre"))?;
    let web = node.wait("web", "to be shown", SOON, |pod| pod.phase() == "Running")?;
    same("who runs", Identity::of(&web)?, before)?;
    same("its stop signal", lines("term")?, 0)?;
    told.open("exit")?;
    node.gone("web")?;
    same("its end", told.all()?.pop().as_deref(), Some("term"))?;
    node.end()
}

fn stop_signal() -> Result<()> {
    let node = Node::start()?;
    let told = Told::new("hooks", "stop_signal")?;
    let script =
        format!("trap '{}; exit 0' USR1; trap '{}; exit 0' TERM; {FOR_EVER}", tell("usr1"), tell("term"));
    let spec = json!({ "os": { "name": "linux" }, "terminationGracePeriodSeconds": 60, "containers": [
        tells("main", &script, json!({ "stopSignal": "SIGUSR1", "preStop": exec("true") })),
    ] });
    node.apply("web", &pod_of(&told, "web", spec))?;
    let web: PodState = node.ready("web")?;
    same("shown", web.container("main")["stopSignal"].as_str(), Some("SIGUSR1"))?;
    node.remove("web")?;
    node.gone("web")?;
    same("its end", told.all()?, vec!["usr1".to_owned()])?;
    node.end()
}
