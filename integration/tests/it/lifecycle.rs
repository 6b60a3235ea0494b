//! Starting again, order, termination, change and removal.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth_integration::agent::{Settings, berth};
use berth_integration::containerd::ctr_rows;
use berth_integration::http;
use berth_integration::node::{Node, POD_LIMIT, PodState};
use berth_integration::vm::Feature;
use berth_integration::wait::{self, Look};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::kit::{
    FOR_EVER, SOON, events, eventually, inside, logged, logs, pod, script, shell, sleeper, task_pid, with,
};
use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("lifecycle::restart_policies_and_exit_codes", restart_policies),
        test("lifecycle::crash_back_off_is_visible", crash_back_off),
        test("lifecycle::init_containers_then_sidecars_then_main", order),
        test("lifecycle::sidecars_stop_after_main_in_reverse", stop_order),
        test("lifecycle::termination_keeps_the_grace_period_then_kills", termination),
        test("lifecycle::stop_signal_of_the_image", stop_signal),
        test("lifecycle::a_changed_manifest_replaces_the_pod", change),
        test("lifecycle::host_port_moves_with_a_changed_pod", host_port_moves).needs(Feature::Nat),
        test("lifecycle::twenty_pods_at_once", twenty),
        test("lifecycle::terminals_and_input_of_containers", terminals_and_input),
        test("lifecycle::an_exec_session_ends_with_its_container", exec_ends),
        test("lifecycle::a_pod_is_active_no_longer_than_its_deadline", active_deadline).long(),
    ]
}

/// With back-off cut to a second, so that a restart is seen soon.
fn fast_restarts() -> Settings {
    Settings {
        kubelet: json!({ "crashLoopBackOff": { "maxContainerRestartPeriod": "1s" } }),
        ..Settings::default()
    }
}

fn policy(name: &str, policy: &str, what: &str) -> String {
    pod(name, json!({ "restartPolicy": policy, "containers": [shell("main", what, json!({}))] }))
}

/// What `tty`, `stdin` and neither give to a container: a terminal, an input that nobody has closed yet, an input at its end. Only the
/// last one ends by itself, however long that takes.
fn terminals_and_input() -> Result<()> {
    let node = Node::start()?;
    let container = |name: &str, waits_s: u32, more: Value| {
        let what = format!(
            "for number in 0 1 2; do test -t $number && echo $number is a terminal; done; echo to the errors >&2; \
             if timeout {waits_s} cat; then echo the end; else echo open; fi; exec sleep infinity"
        );
        shell(name, &what, more)
    };
    node.apply(
        "streams",
        &pod(
            "streams",
            json!({ "containers": [
        container("plain", 3600, json!({})),
        container("input", 1, json!({ "stdin": true })),
        container("terminal", 1, json!({ "stdin": true, "tty": true })),
    ] }),
        ),
    )?;
    let streams = node.ready("streams")?;
    logged(&streams, "plain", "the end\n")?;
    let input = logged(&streams, "input", "open\n")?;
    ensure!(!input.contains("terminal"), "{input}");
    let terminal = logged(&streams, "terminal", "open")?;
    for number in 0..3 {
        ensure!(terminal.contains(&format!("{number} is a terminal")), "{terminal}");
    }
    let file =
        |name: &str| format!("/var/log/pods/default_{}_{}/{name}/0.log", streams.name(), streams.uid());
    // The shim takes two outputs in no order.
    eventually("a second stream", &true, || {
        Ok(std::fs::read_to_string(file("plain"))?.contains(" stderr F to the errors"))
    })?;
    // A terminal has one output.
    ensure!(!std::fs::read_to_string(file("terminal"))?.contains(" stderr "), "two streams");
    node.end()
}

fn restart_policies() -> Result<()> {
    let node = Node::start_with(&fast_restarts())?;
    for (name, restart, what) in [
        ("always-0", "Always", "exit 0"),
        ("always-3", "Always", "exit 3"),
        ("onfailure-0", "OnFailure", "exit 0"),
        ("onfailure-3", "OnFailure", "exit 3"),
        ("never-0", "Never", "exit 0"),
        ("never-3", "Never", "exit 3"),
    ] {
        node.apply(name, &policy(name, restart, what))?;
    }
    for (name, phase) in [("onfailure-0", "Succeeded"), ("never-0", "Succeeded"), ("never-3", "Failed")] {
        let ended = node.wait(name, phase, POD_LIMIT, |pod| pod.phase() == phase)?;
        same("restarts", ended.restarts("main"), 0)?;
        same(
            "code",
            &ended.container("main")["state"]["terminated"]["exitCode"],
            &json!(if phase == "Failed" { 3 } else { 0 }),
        )?;
    }
    for name in ["always-0", "always-3", "onfailure-3"] {
        let again = node.wait(name, "restarted twice", POD_LIMIT, |pod| pod.restarts("main") >= 2)?;
        let last = &again.container("main")["lastState"]["terminated"];
        let wanted = if name.ends_with('0') { (0, "Completed") } else { (3, "Error") };
        same(name, (last["exitCode"].as_i64(), last["reason"].as_str()), (Some(wanted.0), Some(wanted.1)))?;
    }
    node.end()
}

fn crash_back_off() -> Result<()> {
    let node = Node::start()?;
    node.apply("crash", &script("crash", "echo here we go; exit 1"))?;
    let crash =
        node.wait("crash", "in back-off", POD_LIMIT, |pod| pod.waits_for("main") == "CrashLoopBackOff")?;
    let message = crash.container("main")["state"]["waiting"]["message"].as_str().unwrap_or_default();
    ensure!(message.starts_with("back-off 10s restarting failed container=main pod=crash-"), "{message}");
    same("phase", crash.phase(), "Running")?;
    ensure!(!crash.is_ready(), "a crashed pod is Ready");
    // The run that crashed is both the last and the previous one while the next one waits.
    same("log", logs(&crash, "main", &[])?.as_str(), "here we go\n")?;
    same("previous log", logs(&crash, "main", &["--previous"])?.as_str(), "here we go\n")?;
    node.end()
}

const SHARED: &str = "shared";

/// A container with the directory that all share.
fn sharing(name: &str, script: &str, more: Value) -> Value {
    let mounts = json!({ "volumeMounts": [{ "name": SHARED, "mountPath": "/shared" }] });
    shell(name, script, with(mounts, more))
}

/// Of two containers that run beside each other either may be the first to write, whichever was started first: each notes when its process
/// was made, as the kernel tells it (`starttime` of proc_pid_stat(5)).
fn order() -> Result<()> {
    /// How long an init container takes that ends, in the kernel's ticks.
    const TAKES: u64 = 50;
    let node = Node::start()?;
    let container = |name: &str, then: &str, more: Value| {
        let script = format!("cut -d ' ' -f 22 /proc/1/stat > /shared/{name}; {then}");
        sharing(name, &script, more)
    };
    let (ends, forever) = ("sleep 0.5", "exec sleep infinity");
    node.apply(
        "order",
        &pod(
            "order",
            json!({
                "initContainers": [
                    container("first", ends, json!({})),
                    container("side", forever, json!({ "restartPolicy": "Always" })),
                    container("second", ends, json!({})),
                ],
                "containers": [container("main", forever, json!({})), container("other", forever, json!({}))],
                "volumes": [{ "name": SHARED, "emptyDir": {} }],
            }),
        ),
    )?;
    let order = node.ready("order")?;
    let made = wait::until("all containers to note when they were made", SOON, || {
        let text = inside(&order, "cd /shared; cat first side second main other 2>/dev/null || true")?;
        let made = text.lines().map(str::parse).collect::<Result<Vec<u64>, _>>()?;
        Ok(<[u64; 5]>::try_from(made).map_or(Look::NotYet(text), Look::Ready))
    })?;
    let [first, side, second, main, other] = made;
    let is_in_order = first + TAKES <= side && side <= second && second + TAKES <= main && main <= other;
    ensure!(is_in_order, "first, side, second, main and other were made at {made:?}");
    ensure!(order.holds("Initialized"), "not Initialized: {order}");
    node.end()
}

/// Says goodbye in the shared file when it is asked to stop.
fn farewell(name: &str, more: Value) -> Value {
    let trap =
        format!("trap 'echo {name} >> /shared/order; exit 0' TERM; touch /shared/up-{name}; {FOR_EVER}");
    sharing(name, &trap, more)
}

fn stop_order() -> Result<()> {
    let node = Node::start()?;
    let dir = node.world.root().join("order");
    std::fs::create_dir(&dir)?;
    let sidecar = || json!({ "restartPolicy": "Always" });
    node.apply(
        "bye",
        &pod(
            "bye",
            json!({
                "terminationGracePeriodSeconds": 10,
                "initContainers": [farewell("side-one", sidecar()), farewell("side-two", sidecar())],
                "containers": [farewell("main", json!({}))],
                "volumes": [{ "name": SHARED, "hostPath": { "path": dir } }],
            }),
        ),
    )?;
    node.ready("bye")?;
    eventually("traps set", &true, || {
        Ok(["main", "side-one", "side-two"].iter().all(|n| dir.join(format!("up-{n}")).exists()))
    })?;
    node.remove("bye")?;
    node.gone("bye")?;
    let order = std::fs::read_to_string(dir.join("order"))?.replace('\n', " ");
    same("order", order.as_str(), "main side-two side-one ")?;
    node.end()
}

fn termination() -> Result<()> {
    const GRACE: Duration = Duration::from_secs(3);
    /// Nobody waits for it.
    const LONG: Duration = Duration::from_secs(3600);
    let node = Node::start()?;
    let dir = node.world.root().join("dir");
    std::fs::create_dir(&dir)?;
    let mounts = json!({ "volumeMounts": [{ "name": SHARED, "mountPath": "/shared" }] });
    let polite = "until [ -e /shared/go ]; do sleep 0.1; done; echo done > /shared/polite; exit 0";
    for (name, trap, grace) in [("deaf", "true", GRACE), ("polite", polite, LONG)] {
        let what = format!("trap '{trap}' TERM; touch /shared/up-{name}; {FOR_EVER}");
        node.apply(
            name,
            &pod(
                name,
                json!({
                    "terminationGracePeriodSeconds": grace.as_secs(),
                    "containers": [shell("main", &what, mounts.clone())],
                    "volumes": [{ "name": SHARED, "hostPath": { "path": dir } }],
                }),
            ),
        )?;
    }
    let deaf = task_pid(node.ready("deaf")?.container_id("main")?)?;
    node.ready("polite")?;
    eventually("traps set", &true, || Ok(dir.join("up-deaf").exists() && dir.join("up-polite").exists()))?;
    let start = Instant::now();
    node.remove("polite")?;
    node.remove("deaf")?;
    eventually("the deaf one to end", &false, || Ok(Path::new(&format!("/proc/{deaf}")).exists()))?;
    let took = start.elapsed();
    // Far above what a kill takes on a busy machine, and below the default grace period.
    ensure!((GRACE..Duration::from_secs(30)).contains(&took), "the deaf pod took {took:?}");
    node.gone("deaf")?;
    // Its grace period is not over, and not waited for.
    std::fs::write(dir.join("go"), "")?;
    node.gone("polite")?;
    ensure!(dir.join("polite").exists(), "the polite container was killed");
    node.end()
}

fn stop_signal() -> Result<()> {
    use berth_integration::image::{Image, Layer, Packing};
    let node = Node::start_with(&Settings::with_registry())?;
    let dir = node.world.root().join("dir");
    std::fs::create_dir(&dir)?;
    let image =
        Image::new(&Layer::busybox(Packing::Gzip)?, &json!({ "StopSignal": "SIGUSR1", "Cmd": ["/bin/sh"] }));
    node.registry.as_ref().context("registry")?.push("usr1", "1", &image)?;
    let what = format!(
        "trap 'echo usr1 > /shared/got; exit 0' USR1; trap 'echo term > /shared/got; exit 0' TERM
        touch /shared/up; {FOR_EVER}"
    );
    let container = shell(
        "main",
        &what,
        json!({
            "image": "localhost:5000/usr1:1",
            "volumeMounts": [{ "name": SHARED, "mountPath": "/shared" }],
        }),
    );
    node.apply(
        "usr1",
        &pod(
            "usr1",
            json!({
                "containers": [container],
                "volumes": [{ "name": SHARED, "hostPath": { "path": dir } }],
            }),
        ),
    )?;
    node.ready("usr1")?;
    eventually("traps set", &true, || Ok(dir.join("up").exists()))?;
    node.remove("usr1")?;
    node.gone("usr1")?;
    same("signal", std::fs::read_to_string(dir.join("got"))?.as_str(), "usr1\n")?;
    node.end()
}

fn change() -> Result<()> {
    let node = Node::start()?;
    node.apply("change", &script("change", "echo one; exec sleep infinity"))?;
    let one = node.ready("change")?;
    logged(&one, "main", "one\n")?;
    let (uid, id) = (one.uid().to_owned(), one.container_id("main")?.to_owned());

    // The same manifest again is no change.
    node.apply("change", &script("change", "echo one; exec sleep infinity"))?;
    node.apply("other", &sleeper("other"))?;
    node.ready("other")?;
    same("id after the same manifest", node.ready("change")?.container_id("main")?, id.as_str())?;

    node.apply("change", &script("change", "echo two; exec sleep infinity"))?;
    let two = node.wait("change", "replaced", POD_LIMIT, |pod| pod.uid() != uid && pod.is_ready())?;
    logged(&two, "main", "two\n")?;
    ensure!(
        ctr_rows(&["containers", "ls"])?.iter().all(|row| row[0] != id),
        "the old container is still there"
    );
    node.end()
}

fn host_port_moves() -> Result<()> {
    let node = Node::start()?;
    let server = |word: &str| {
        let what = format!("mkdir /www; echo {word} > /www/index.html; exec httpd -f -p 80 -h /www");
        let ports = json!({ "ports": [{ "containerPort": 80, "hostPort": 8081 }] });
        pod("server", json!({ "containers": [shell("main", &what, ports)] }))
    };
    let at = std::net::SocketAddr::from(([127, 0, 0, 1], 8081));
    for word in ["one", "two"] {
        node.apply("server", &server(word))?;
        eventually(&format!("the answer {word}"), &format!("{word}\n"), || {
            // No answer while nobody listens.
            Ok(http::page(at, "/").map(|answer| answer.text()).unwrap_or_default())
        })?;
    }
    node.end()
}

fn twenty() -> Result<()> {
    const COUNT: usize = 20;
    let node = Node::start()?;
    // The first pod pulls for all.
    node.apply("zero", &sleeper("zero"))?;
    node.ready("zero")?;
    let names: Vec<String> = (1..=COUNT).map(|number| format!("many-{number}")).collect();
    for name in &names {
        node.apply(name, &sleeper(name))?;
    }
    let mut ips = std::collections::BTreeSet::new();
    for name in &names {
        ips.insert(node.ready(name)?.ip()?);
    }
    same("different addresses", ips.len(), COUNT)?;
    same("tasks", ctr_rows(&["tasks", "ls"])?.len(), COUNT + 1)?;
    node.end()
}

fn exec_ends() -> Result<()> {
    let node = Node::start_with(&fast_restarts())?;
    node.apply("short", &script("short", "exec sleep infinity"))?;
    let short = node.ready("short")?;
    let pid = task_pid(short.container_id("main")?)?;
    let mut session =
        berth_integration::agent::berth_command(&["exec", short.name(), "--", "sleep", "infinity"])?
            .stdin(std::process::Stdio::null())
            .spawn()?;
    eventually("the session to run", &true, || {
        Ok(berth(&["exec", short.name(), "--", "ps"])?.matches("sleep infinity").count() >= 2)
    })?;
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(i32::try_from(pid)?),
        nix::sys::signal::Signal::SIGKILL,
    )?;
    wait::until("the session to end", SOON, || {
        Ok(session.try_wait()?.map_or_else(|| Look::NotYet("running".to_owned()), |_| Look::Ready(())))
    })?;
    let again = node.wait("short", "restarted", POD_LIMIT, |pod: &PodState| pod.restarts("main") == 1)?;
    let last = &again.container("main")["lastState"]["terminated"];
    same("code", last["exitCode"].as_i64(), Some(137))?;
    node.end()
}

/// The time that a pod may be active counts from its own start: an agent that comes back gives it no more.
fn active_deadline() -> Result<()> {
    /// Far longer than a pod takes until it runs.
    const TIME: SignedDuration = SignedDuration::from_secs(30);
    // No look at the pod that would be due anyway (`syncFrequency`) tells that its time is up.
    let kubelet = json!({ "syncFrequency": "1h" });
    let mut node = Node::start_with(&Settings { kubelet, ..Settings::default() })?;
    node.apply("unseen", &active_for("unseen", TIME))?;
    let unseen = node.ready("unseen")?;
    let deadline = time_of(&unseen.0["status"]["startTime"])? + TIME;
    node.agent.kill()?;
    eventually("the deadline", &true, || Ok(Timestamp::now() >= deadline))?;
    let process = task_pid(unseen.container_id("main")?)?;
    ensure!(Path::new(&format!("/proc/{process}")).exists(), "it ended without an agent");
    let back = Timestamp::now();
    node.agent.start()?;
    let over = exceeded(&node, "unseen")?;
    let ended = time_of(&over.container("main")["state"]["terminated"]["finishedAt"])?;
    // To the second.
    ensure!(ended.as_second() >= back.as_second() && ended < back + TIME, "back at {back}, ended at {ended}");

    node.apply("seen", &active_for("seen", TIME))?;
    node.ready("seen")?;
    let over = exceeded(&node, "seen")?;
    let (began, now) = (time_of(&over.0["status"]["startTime"])?, Timestamp::now());
    ensure!(now >= began + TIME, "began at {began}, over at {now}");
    ensure!(events(&over)?.contains("DeadlineExceeded"), "no event");
    node.agent.kill()?;
    node.agent.start()?;
    for name in ["unseen", "seen"] {
        exceeded(&node, name)?;
    }
    node.end()
}

fn active_for(name: &str, time: SignedDuration) -> String {
    let main = shell("main", "exec sleep infinity", json!({}));
    pod(name, json!({ "activeDeadlineSeconds": time.as_secs(), "containers": [main] }))
}

/// A pod whose time was up, in the kubelet's words (`pkg/kubelet/active_deadline.go`).
fn exceeded(node: &Node, name: &str) -> Result<PodState> {
    const WHY: &str = "Pod was active on the node longer than the specified deadline";
    let over = node.wait(name, "Failed", POD_LIMIT, |pod| pod.phase() == "Failed")?;
    let status = &over.0["status"];
    same(
        name,
        (status["reason"].as_str(), status["message"].as_str()),
        (Some("DeadlineExceeded"), Some(WHY)),
    )?;
    same("restarts", over.restarts("main"), 0)?;
    Ok(over)
}

fn time_of(field: &Value) -> Result<Timestamp> {
    field.as_str().with_context(|| format!("no time: {field}"))?.parse().context("a time")
}
