//! Probes of real containers. What is asked over the network is the test itself, which counts: its pods are on the node's
//! network, where it listens.

pub(crate) mod server;

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use berth_integration::node::{Node, POD_LIMIT, PodState};
use berth_integration::wait::{self, Look};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use self::server::{Mode, Server};
use crate::kit::{FOR_EVER, events, eventually, pod, shared_memory, shell, task_pid, with};
use crate::lives::Identity;
use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("probes::every_handler_flips_readiness_at_once", handlers),
        test("probes::a_failed_liveness_probe_restarts_with_its_own_grace", liveness),
        test("probes::startup_holds_back_the_others_and_the_next_container", startup),
        test("probes::thresholds_and_delays_as_the_server_counts_them", thresholds),
        test("probes::an_agent_that_is_killed_flips_nothing", agent_killed),
        test("probes::commands_are_run_while_containerd_hangs", containerd_hangs),
        test("probes::no_port_is_kept_and_what_hangs_holds_up_nobody", nothing_left),
    ]
}

/// A pod on the node's network.
fn on_node(name: &str, spec: Value) -> String {
    pod(name, with(json!({ "hostNetwork": true }), spec))
}

fn sleeps(name: &str, more: Value) -> Value {
    shell(name, FOR_EVER, more)
}

fn is_ready(pod: &PodState, container: &str) -> bool {
    pod.container(container)["ready"] == true
}

fn all_ready(node: &Node, name: &str, containers: &[&str], expected: bool) -> Result<PodState> {
    let what = format!("{containers:?} of {name} to be ready: {expected}");
    node.wait(name, &what, POD_LIMIT, |pod| {
        containers.iter().all(|one| is_ready(pod, one) == expected) && pod.is_ready() == expected
    })
}

fn handlers() -> Result<()> {
    let node = Node::start()?;
    let (http, grpc) = (Server::http()?, Server::grpc()?);
    // Connections wait in it for as long as it is there: nobody takes them.
    let listen = |port: u16| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).context("listen");
    let listener = listen(0)?;
    let port = listener.local_addr()?.port();
    let probe = |handler: Value| {
        let timing = json!({ "periodSeconds": 1, "failureThreshold": 1 });
        json!({ "readinessProbe": with(timing, handler) })
    };
    let names = ["http", "grpc", "tcp", "exec"];
    node.apply(
        "all",
        &on_node(
            "all",
            json!({ "containers": [
        sleeps("http", probe(json!({ "httpGet": { "port": http.port(), "path": "/http" } }))),
        sleeps("grpc", probe(json!({ "grpc": { "port": grpc.port(), "service": "some" } }))),
        sleeps("tcp", probe(json!({ "tcpSocket": { "port": port } }))),
        sleeps("exec", probe(json!({ "exec": { "command": ["/bin/sh", "-c", "cat /dev/shm/well"] } }))),
    ] }),
        ),
    )?;
    let all = node.wait("all", "all but the file to be ready", POD_LIMIT, |pod| {
        pod.phase() == "Running" && ["http", "grpc", "tcp"].iter().all(|one| is_ready(pod, one))
    })?;
    ensure!(!is_ready(&all, "exec") && !all.is_ready(), "{all}");
    same("started", all.container("exec")["started"].as_bool(), Some(true))?;
    let well = shared_memory(&all, "exec", "well")?;
    fs::write(&well, "")?;
    all_ready(&node, "all", &names, true)?;

    http.set(Mode::Bad);
    grpc.set(Mode::Bad);
    fs::remove_file(&well)?;
    drop(listener);
    let all = all_ready(&node, "all", &names, false)?;
    let refused = format!(":{port}: connect: connection refused");
    are_told(
        &all,
        &[
            refused.as_str(),
            "Readiness probe failed: HTTP probe failed with statuscode: 503",
            "Readiness probe failed: service unhealthy (responded with \"NOT_SERVING\")",
            "Readiness probe failed: cat: can't open '/dev/shm/well': No such file or directory",
        ],
    )?;

    http.set(Mode::Good);
    grpc.set(Mode::Good);
    fs::write(&well, "")?;
    let _listener = listen(port)?;
    all_ready(&node, "all", &names, true)?;

    // Whoever hangs is cut off in time; what was run in the container is killed.
    http.set(Mode::Silent);
    grpc.set(Mode::Silent);
    fs::remove_file(&well)?;
    nix::unistd::mkfifo(&well, nix::sys::stat::Mode::S_IRWXU)?;
    let all = node.wait("all", "unready where a connection is not enough", POD_LIMIT, |pod| {
        !pod.is_ready() && names.iter().all(|one| is_ready(pod, one) == (*one == "tcp"))
    })?;
    are_told(
        &all,
        &[
            "context deadline exceeded (Client.Timeout exceeded while awaiting headers)",
            "Readiness probe failed: timeout: health rpc did not complete within 1s",
            "Readiness probe failed: command timed out: \"/bin/sh -c cat /dev/shm/well\" timed out after 1s",
        ],
    )?;
    fs::remove_file(&well)?;
    fs::write(&well, "")?;
    eventually("what was run to have ended", &0, || processes(&all, "exec", "cat /dev/shm/well"))?;
    same("restarts", names.iter().map(|one| all.restarts(one)).sum::<u64>(), 0)?;
    node.end()
}

/// Waits until all of these are told of a pod. What made it unready may be that an answer took too long: the next one says why.
fn are_told(pod: &PodState, texts: &[&str]) -> Result<()> {
    wait::until("the failures of probes to be told", POD_LIMIT, || {
        let told = events(pod)?;
        let missing = texts.iter().find(|text| !told.contains(**text));
        Ok(missing.map_or(Look::Ready(()), |text| Look::NotYet(format!("{text:?} is not in {told}"))))
    })
}

/// How many processes of a container have this in their command line.
fn processes(pod: &PodState, container: &str, part: &str) -> Result<usize> {
    let group = format!("/{}", pod.container_id(container)?);
    let mut count = 0;
    for entry in fs::read_dir("/proc")? {
        let dir = entry?.path();
        let read = |file: &str| fs::read_to_string(dir.join(file)).unwrap_or_default().replace('\0', " ");
        count += usize::from(read("cgroup").contains(&group) && read("cmdline").contains(part));
    }
    Ok(count)
}

/// The time that a pod has to end, seconds, and one that is far from it, within which what its probe ends is back on a busy machine.
const POD_GRACE: u32 = 600;
const OWN_GRACE_WITHIN: Duration = Duration::from_secs(120);

/// A file of what a container runs now, from outside.
fn file_of(pod: &PodState, container: &str, file: &str) -> Result<PathBuf> {
    Ok(PathBuf::from(format!("/proc/{}/root/{file}", task_pid(pod.container_id(container)?)?)))
}

fn is_up(pod: &PodState) -> Result<()> {
    let up = file_of(pod, "main", "up")?;
    eventually("the trap", &true, || Ok(up.exists()))
}

fn liveness() -> Result<()> {
    let node = Node::start()?;
    let probe = json!({ "livenessProbe": {
        "exec": { "command": ["test", "!", "-e", "/sick"] },
        "periodSeconds": 1,
        "timeoutSeconds": 30,
        "failureThreshold": 2,
        "terminationGracePeriodSeconds": 3,
    } });
    let script = format!("trap 'test ! -e /may-end || exit 0' TERM; touch /up; {FOR_EVER}");
    let other = format!("trap 'exit 0' TERM; {FOR_EVER}");
    let spec = |policy: &str| {
        json!({
            "terminationGracePeriodSeconds": POD_GRACE,
            "restartPolicy": policy,
            "containers": [shell("main", &script, probe.clone()), shell("other", &other, json!({}))],
        })
    };
    for policy in ["Always", "OnFailure", "Never"] {
        let name = policy.to_lowercase();
        node.apply(&name, &pod(&name, spec(policy)))?;
    }
    for (name, ending) in
        [("always", ", will be restarted"), ("onfailure", ", will be restarted"), ("never", "")]
    {
        let before = node.ready(name)?;
        is_up(&before)?;
        let began = Instant::now();
        fs::write(file_of(&before, "main", "sick")?, "")?;
        let after = node.wait(name, "its end", OWN_GRACE_WITHIN, |pod| {
            let has_ended = !pod.container("main")["state"]["terminated"].is_null();
            if name == "never" { has_ended } else { pod.restarts("main") == 1 }
        })?;
        // Two failures, then its grace period.
        let took = began.elapsed();
        ensure!(took >= Duration::from_secs(3), "{name}: after {took:?}");
        same("runs again", after.restarts("main"), u64::from(name != "never"))?;
        same("the other one", after.container_id("other")?, before.container_id("other")?)?;
        let told = events(&after)?;
        for text in
            ["Liveness probe failed:".to_owned(), format!("Container main failed liveness probe{ending}")]
        {
            ensure!(told.contains(&text), "{text:?} is not in {told}");
        }
        let last = ["lastState", "state"]
            .map(|state| after.container("main")[state]["terminated"]["exitCode"].as_i64());
        ensure!(last.contains(&Some(137)), "{after}");
    }
    for name in ["always", "onfailure"] {
        let again = node.ready(name)?;
        is_up(&again)?;
        fs::write(file_of(&again, "main", "may-end")?, "")?;
    }
    node.clear()?;
    node.end()
}

fn startup() -> Result<()> {
    let node = Node::start()?;
    let server = Server::http()?;
    let get = |path: &str| json!({ "port": server.port(), "path": path });
    // Who waits for each answer asks nothing twice.
    let probe = |path: &str, failures: u32| {
        let timing = json!({ "periodSeconds": 1, "timeoutSeconds": 600, "failureThreshold": failures });
        with(timing, json!({ "httpGet": get(path) }))
    };
    let side = json!({
        "restartPolicy": "Always",
        "startupProbe": probe("/startup", 1000),
        "livenessProbe": probe("/liveness", 3),
        "readinessProbe": probe("/readiness", 3),
    });
    server.set(Mode::Bad);
    node.apply(
        "gate",
        &on_node(
            "gate",
            json!({
                "initContainers": [sleeps("side", side)],
                "containers": [sleeps("main", json!({}))],
            }),
        ),
    )?;
    server.asked("/startup", 5)?;
    let gate = node.pod("gate")?.context("no pod")?;
    same("started", gate.container("side")["started"].as_bool(), Some(false))?;
    same("phase", gate.phase(), "Pending")?;
    same("what comes after", gate.waits_for("main"), "PodInitializing")?;
    ensure!(!gate.holds("Initialized"), "{gate}");
    same("others", (server.count("/liveness"), server.count("/readiness")), (0, 0))?;
    server.set(Mode::Good);
    let gate = all_ready(&node, "gate", &["side", "main"], true)?;
    same("started", gate.container("side")["started"].as_bool(), Some(true))?;
    let startups = server.count("/startup");
    server.asked("/liveness", 3)?;
    same("startup is asked no more", server.count("/startup"), startups)?;

    // One that never starts is run again and again.
    let never = json!({ "startupProbe": { "exec": { "command": ["false"] }, "periodSeconds": 1, "failureThreshold": 2 } });
    node.apply("never", &pod("never", json!({ "containers": [sleeps("main", never)] })))?;
    let never = node.wait("never", "a restart", POD_LIMIT, |pod| pod.restarts("main") >= 1)?;
    ensure!(events(&never)?.contains("Container main failed startup probe, will be restarted"), "{never}");
    node.end()
}

/// What is asked for by the probe whose answers are counted.
const COUNTED: &str = "/r";

/// Readiness changes with the last of so many answers, and with none before. The question after them waits: what was answered until
/// then has been counted.
fn changes_with(node: &Node, server: &Server, mode: Mode, answers: usize) -> Result<()> {
    let becomes = mode == Mode::Good;
    let asked = server.count(COUNTED);
    server.answer(COUNTED, mode, answers - 1);
    server.asked(COUNTED, asked + answers - 1)?;
    let count = node.pod("count")?.context("no pod")?;
    ensure!(is_ready(&count, "main") != becomes, "{} answers of {mode:?} were enough: {count}", answers - 1);
    server.answer(COUNTED, mode, 1);
    all_ready(node, "count", &["main"], becomes)?;
    server.asked(COUNTED, asked + answers)
}

fn thresholds() -> Result<()> {
    const DELAY: usize = 4;
    let node = Node::start()?;
    let server = Server::http()?;
    server.answer(COUNTED, Mode::Good, 0);
    let probe = json!({ "readinessProbe": {
        "httpGet": { "port": server.port(), "path": COUNTED, "httpHeaders": [{ "name": "X-Who", "value": "me" }] },
        "initialDelaySeconds": DELAY, "periodSeconds": 1, "timeoutSeconds": 600, "successThreshold": 3, "failureThreshold": 4,
    } });
    let pace = json!({ "readinessProbe": {
        "httpGet": { "port": server.port(), "path": "/pace" }, "periodSeconds": 1, "timeoutSeconds": 600,
    } });
    let containers = [sleeps("main", probe), sleeps("pace", pace)];
    node.apply("count", &on_node("count", json!({ "containers": containers })))?;
    server.asked(COUNTED, 1)?;
    let first = server.first(COUNTED)?;
    let count = node.pod("count")?.context("no pod")?;
    let began = &count.container("main")["state"]["running"]["startedAt"];
    let began: Timestamp = began.as_str().with_context(|| format!("no start: {count}"))?.parse()?;
    let waited = first.at.duration_since(began);
    ensure!(waited >= SignedDuration::from_secs(i64::try_from(DELAY)?), "asked {waited:?} after its start");
    // The other one began after it, and is asked each second by the same clock.
    ensure!(first.others <= 2 * DELAY, "asked after {} questions to the other one", first.others);

    changes_with(&node, &server, Mode::Good, 3)?;
    let head = server.head(COUNTED)?;
    for line in
        ["GET /r HTTP/1.1", "User-Agent: kube-probe/1.36", "Accept: */*", "Connection: close", "X-Who: me"]
    {
        ensure!(head.contains(line), "{line:?} is not in {head}");
    }
    changes_with(&node, &server, Mode::Bad, 4)?;
    changes_with(&node, &server, Mode::Good, 3)?;
    // A redirect elsewhere is well, and told.
    server.set(Mode::Elsewhere);
    let told = "Readiness probe warning: Probe terminated redirects, Response body:";
    eventually("the warning", &true, || Ok(events(&node.pod("count")?.context("no pod")?)?.contains(told)))?;
    ensure!(node.pod("count")?.context("no pod")?.is_ready(), "it counts as success");
    node.end()
}

fn agent_killed() -> Result<()> {
    let mut node = Node::start()?;
    let server = Server::http()?;
    let probe = |path: &str, failures: u32| json!({ "httpGet": { "port": server.port(), "path": path }, "periodSeconds": 1, "failureThreshold": failures });
    node.apply(
        "stays",
        &on_node(
            "stays",
            json!({ "containers": [sleeps("main", json!({
        "startupProbe": probe("/startup", 1000),
        "livenessProbe": probe("/liveness", 1000),
        "readinessProbe": probe("/readiness", 1000),
    }))] }),
        ),
    )?;
    node.apply(
        "sick",
        &on_node(
            "sick",
            json!({ "containers": [sleeps("main", json!({
        "readinessProbe": probe("/sick", 1),
    }))] }),
        ),
    )?;
    let stays = node.ready("stays")?;
    node.ready("sick")?;
    let (before, conditions) = (Identity::of(&stays)?, stays.0["status"]["conditions"].clone());
    let startups = server.count("/startup");
    // What it says while nobody asks is not known.
    server.set(Mode::Silent);
    node.agent.kill()?;
    node.agent.start()?;
    let stays = node.wait("stays", "to be shown again", POD_LIMIT, |pod| pod.phase() == "Running")?;
    same("who runs", Identity::of(&stays)?, before)?;
    same("conditions", &stays.0["status"]["conditions"], &conditions)?;
    let asked = server.count("/liveness");
    server.asked("/liveness", asked + 2)?;
    all_ready(&node, "sick", &["main"], false)?;
    let stays = node.pod("stays")?.context("no pod")?;
    same("conditions", &stays.0["status"]["conditions"], &conditions)?;
    same("startup is not asked again", server.count("/startup"), startups)?;
    server.set(Mode::Good);
    all_ready(&node, "sick", &["main"], true)?;
    // A verdict survives too.
    server.set(Mode::Bad);
    let sick = all_ready(&node, "sick", &["main"], false)?;
    let conditions = sick.0["status"]["conditions"].clone();
    node.agent.kill()?;
    node.agent.start()?;
    let sick = node.wait("sick", "to be shown again", POD_LIMIT, |pod| pod.phase() == "Running")?;
    same("conditions", &sick.0["status"]["conditions"], &conditions)?;
    node.end()
}

fn containerd_hangs() -> Result<()> {
    let node = Node::start()?;
    let probe = json!({ "readinessProbe": {
        "exec": { "command": ["test", "-e", "/dev/shm/well"] }, "periodSeconds": 1, "failureThreshold": 1,
    } });
    node.apply("alone", &pod("alone", json!({ "containers": [sleeps("main", probe)] })))?;
    let alone = node.wait("alone", "to run", POD_LIMIT, |pod| pod.phase() == "Running")?;
    let well = shared_memory(&alone, "main", "well")?;
    node.containerd.freeze()?;
    let flips = || -> Result<()> {
        for _round in 0..2 {
            fs::write(&well, "")?;
            all_ready(&node, "alone", &["main"], true)?;
            fs::remove_file(&well)?;
            all_ready(&node, "alone", &["main"], false)?;
        }
        Ok(())
    };
    let flipped = flips();
    node.containerd.thaw()?;
    flipped?;
    node.end()
}

fn nothing_left() -> Result<()> {
    const HUNG: usize = 30;
    let node = Node::start()?;
    let (server, silent) = (Server::http()?, Server::http()?);
    silent.set(Mode::Silent);
    let hangs = |number: usize| {
        let get = json!({ "port": silent.port(), "path": format!("/{number}") });
        let probe = json!({ "httpGet": get, "periodSeconds": 1, "timeoutSeconds": 600 });
        sleeps(&format!("c{number}"), json!({ "readinessProbe": probe }))
    };
    let hung: Vec<Value> = (0..HUNG).map(hangs).collect();
    node.apply("hung", &on_node("hung", json!({ "containers": hung })))?;
    node.wait("hung", "to run", POD_LIMIT, |pod| pod.phase() == "Running")?;
    wait::until("probes that hang", POD_LIMIT, || {
        let asked = silent.total();
        Ok(if asked >= 16 { Look::Ready(()) } else { Look::NotYet(format!("{asked} asked")) })
    })?;
    let probe = |handler: Value| {
        with(json!({ "periodSeconds": 1, "timeoutSeconds": 600, "failureThreshold": 1 }), handler)
    };
    let get = |number: usize| json!({ "httpGet": { "port": server.port(), "path": format!("/{number}") } });
    let tcp = json!({ "tcpSocket": { "port": server.port() } });
    let asks = |number: usize| {
        let probes = json!({ "readinessProbe": probe(get(number)), "livenessProbe": probe(tcp.clone()) });
        sleeps(&format!("c{number}"), probes)
    };
    node.apply("well", &on_node("well", json!({ "containers": (0..4).map(asks).collect::<Vec<_>>() })))?;
    node.ready("well")?;
    server.asked("/0", 20)?;
    server.set(Mode::Bad);
    all_ready(&node, "well", &["c0", "c1", "c2", "c3"], false)?;
    // One question each, however long they hang, and of one pod no more than its share.
    ensure!(silent.total() == 16, "{} questions hang", silent.total());
    // A server that closes in the very moment between the end of the stream and the reset makes the node wait: seldom.
    let (kept, asked) = (waiting(server.port())?, server.total());
    ensure!(kept * 2 < asked, "{kept} ports are kept after {asked} requests, and as many connections");
    node.clear()?;
    node.end()
}

/// Sockets in TIME_WAIT to or from a port.
fn waiting(port: u16) -> Result<usize> {
    let mut count = 0;
    for table in ["/proc/self/net/tcp", "/proc/self/net/tcp6"] {
        let end = format!(":{port:04X}");
        let text = fs::read_to_string(table)?;
        let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        count += lines.filter(|it| it[3] == "06" && (it[1].ends_with(&end) || it[2].ends_with(&end))).count();
    }
    Ok(count)
}
