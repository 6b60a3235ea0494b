//! The command line against a running agent.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use berth_integration::agent::{berth, berth_command, berth_json, berth_output};
use berth_integration::node::{Node, POD_LIMIT};
use berth_integration::wait::{self, Look};
use nix::pty::openpty;
use serde_json::json;

use crate::kit::{SOON, berth_fails, exec, logged, logs, pod, script, shell};
use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("cli::pods_inspect_and_events", shows),
        test("cli::exec_codes_streams_and_input", exec_plain),
        test("cli::exec_with_a_terminal", exec_terminal),
        test("cli::logs", log_options),
        test("cli::names_that_are_not_there", not_found),
        test("cli::check_says_what_the_agent_says", check),
    ]
}

fn shows() -> Result<()> {
    let node = Node::start()?;
    node.apply("one", &script("one", "exec sleep infinity"))?;
    let one = node.ready("one")?;
    let table = berth(&["pods"])?;
    ensure!(table.contains(one.name()) && table.contains("1/1") && table.contains("Running"), "{table}");
    let shown = berth_json(&["inspect", one.name()])?;
    let text = berth(&["inspect", one.name()])?;
    for part in [one.uid(), one.container_id("main")?, &one.ip()?.to_string()] {
        ensure!(text.contains(part), "no {part} in {text}");
        ensure!(shown.to_string().contains(part), "no {part} in {shown}");
    }
    ensure!(text.contains("/var/log/pods/"), "{text}");
    let events = crate::kit::events(&one)?;
    for reason in ["Pulled", "Created", "Started"] {
        ensure!(events.contains(reason), "no {reason} in {events}");
    }
    node.end()
}

fn exec_plain() -> Result<()> {
    let node = Node::start()?;
    node.apply("exec", &script("exec", "exec sleep infinity"))?;
    let target = node.ready("exec")?;
    for code in [0, 1, 42, 255] {
        let done = berth_output(&["exec", target.name(), "--", "sh", "-c", &format!("exit {code}")])?;
        same("exit code", done.status.code(), Some(code))?;
    }
    let done = berth_output(&["exec", target.name(), "--", "sh", "-c", "kill -9 $$"])?;
    same("exit code of a killed command", done.status.code(), Some(137))?;
    let done = berth_output(&["exec", target.name(), "--", "sh", "-c", "echo out; echo err >&2"])?;
    same(
        "streams",
        (String::from_utf8(done.stdout)?.as_str(), String::from_utf8(done.stderr)?.as_str()),
        ("out\n", "err\n"),
    )?;
    let done = berth_output(&["exec", target.name(), "--", "/no/such/program"])?;
    ensure!(
        !done.status.success() && String::from_utf8_lossy(&done.stderr).contains("/no/such/program"),
        "{done:?}"
    );

    // A megabyte in and out again.
    let mut cat = berth_command(&["exec", "--stdin", target.name(), "--", "cat"])?
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut input = cat.stdin.take().context("stdin")?;
    let content: Vec<u8> = (0..1_u32 << 18).flat_map(u32::to_le_bytes).collect();
    let sent = content.clone();
    let writer = std::thread::spawn(move || input.write_all(&sent));
    let mut back = Vec::new();
    cat.stdout.take().context("stdout")?.read_to_end(&mut back)?;
    writer.join().ok().context("the writer panicked")??;
    ensure!(cat.wait()?.success(), "cat failed");
    ensure!(back == content, "{} bytes came back of {}", back.len(), content.len());
    node.end()
}

fn exec_terminal() -> Result<()> {
    let node = Node::start()?;
    node.apply("term", &script("term", "exec sleep infinity"))?;
    let target = node.ready("term")?;
    let pty = openpty(&nix::pty::Winsize { ws_row: 33, ws_col: 99, ws_xpixel: 0, ws_ypixel: 0 }, None)?;
    let mut shell = in_terminal(&berth_command(&["exec", "-it", target.name(), "--", "sh"])?, pty.slave)?;
    let mut master = File::from(pty.master);
    master.write_all(b"tty; stty size; echo $((6*7)); exit 5\n")?;
    let mut said = Vec::new();
    // The terminal hangs up, with an error, when the last process of it ends.
    drop(master.read_to_end(&mut said));
    let said = String::from_utf8_lossy(&said).into_owned();
    for part in ["/dev/pts/", "33 99", "\r\n42\r\n"] {
        ensure!(said.contains(part), "no {part:?} in {said:?}");
    }
    same("exit code", shell.wait()?.code(), Some(5))?;
    node.end()
}

/// Starts a command on a terminal; nobody else has it open then, so its end is seen.
pub(crate) fn in_terminal(command: &Command, terminal: OwnedFd) -> Result<Child> {
    // `setsid --ctty` gives the session the terminal that a login would have.
    let mut session = Command::new("setsid");
    session.arg("--ctty").arg(command.get_program()).args(command.get_args());
    session.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    session.stdin(terminal.try_clone()?).stdout(terminal.try_clone()?).stderr(terminal);
    session.spawn().context("start setsid")
}

fn log_options() -> Result<()> {
    let node = Node::start_with(&berth_integration::agent::Settings {
        kubelet: json!({ "crashLoopBackOff": { "maxContainerRestartPeriod": "1s" } }),
        ..Default::default()
    })?;
    let what = "test -e /v/again && { echo second run; exec sleep infinity; }
        touch /v/again; for i in 1 2 3 4 5; do echo line $i; done; echo oops >&2; printf no-end; exit 1";
    node.apply("logs", &pod("logs", json!({
        "containers": [shell("main", what, json!({ "volumeMounts": [{ "name": "v", "mountPath": "/v" }] }))],
        "volumes": [{ "name": "v", "emptyDir": {} }],
    })))?;
    let target =
        node.wait("logs", "in its second run", POD_LIMIT, |pod| pod.restarts("main") == 1 && pod.is_ready())?;
    logged(&target, "main", "second run\n")?;
    let previous = logs(&target, "main", &["--previous"])?;
    ensure!(previous.starts_with("line 1\nline 2\n") && previous.contains("line 5\n"), "{previous}");
    ensure!(previous.ends_with("no-end") || previous.ends_with("no-end\n"), "{previous:?}");
    let tail = logs(&target, "main", &["--previous", "--tail", "2"])?;
    same("lines of --tail 2", tail.lines().count(), 2)?;
    same("--since 1h", logs(&target, "main", &["--since", "1h"])?.as_str(), "second run\n")?;
    same("--tail 0", logs(&target, "main", &["--tail", "0"])?.as_str(), "")?;

    let mut follow = berth_command(&["logs", "--follow", target.name()])?.stdout(Stdio::piped()).spawn()?;
    let mut out = follow.stdout.take().context("stdout")?;
    exec(&target, "main", &["sh", "-c", "echo later > /proc/1/fd/1"])?;
    let mut said = String::new();
    let mut piece = [0; 256];
    wait::until("the line that came later", SOON, || {
        let count = out.read(&mut piece)?;
        said.push_str(&String::from_utf8_lossy(&piece[..count]));
        Ok(if said.contains("later\n") { Look::Ready(()) } else { Look::NotYet(said.clone()) })
    })?;
    node.remove("logs")?;
    // Following ends with the container.
    wait::until("the follower to end", SOON, || {
        Ok(follow.try_wait()?.map_or_else(|| Look::NotYet("running".to_owned()), Look::Ready))
    })?;
    node.end()
}

fn not_found() -> Result<()> {
    let node = Node::start()?;
    node.apply("one", &script("one", "exec sleep infinity"))?;
    let one = node.ready("one")?;
    for args in [&["inspect", "absent"][..], &["logs", "absent"], &["exec", "absent", "--", "true"]] {
        let said = berth_fails(args)?;
        ensure!(said.contains("absent"), "{args:?}: {said}");
    }
    let said = berth_fails(&["logs", one.name(), "--container", "absent"])?;
    ensure!(said.contains("absent") && said.contains("main"), "{said}");
    node.end()
}

/// What `berth check` says, and that the agent says the same.
fn check() -> Result<()> {
    let node = Node::start()?;
    let broken = pod(
        "broken",
        json!({ "restartPolicy": "Sometimes", "containers": [shell("main", "true", json!({}))] }),
    );
    let tuned = pod(
        "tuned",
        json!({
            "securityContext": { "sysctls": [{ "name": "kernel.shmmax", "value": "1" }] },
            "containers": [shell("main", "true", json!({}))],
        }),
    );
    let level = json!({ "securityContext": { "seLinuxOptions": { "level": "top secret" } } });
    let labelled = pod("labelled", json!({ "containers": [shell("main", "true", level)] }));
    let web = script("web", "exec sleep infinity");
    for (name, manifest) in [("broken", &broken), ("labelled", &labelled), ("tuned", &tuned), ("web", &web)] {
        node.apply(name, manifest)?;
    }
    node.ready("web")?;
    let dir = node.manifests().display().to_string();
    let done = berth_output(&["check", "--hostname-override", "lab", &dir])?;
    same("exit code", done.status.code(), Some(1))?;
    let said = String::from_utf8(done.stdout)?;
    let fault = "spec.restartPolicy: `Sometimes` is not one of";
    let none = "the format of 'level' \"top secret\" is not correct";
    let forbidden = "forbidden sysctl: \"kernel.shmmax\" not allowlisted";
    for part in [
        "broken.yaml: not used",
        fault,
        "pod default/tuned-lab would not run",
        forbidden,
        "pod default/labelled-lab would not run",
        none,
        "web-lab is good",
        "3 of 4",
    ] {
        ensure!(said.contains(part), "no {part:?} in {said}");
    }
    ensure!(berth(&["pods"])?.contains(fault), "the agent says otherwise");
    let is_refused = |text: String| text.contains("the format of 'level'");
    node.wait("labelled", "refused", POD_LIMIT, |pod| is_refused(pod.to_string()))?;
    let tuned = node.wait("tuned", "Failed", POD_LIMIT, |pod| pod.phase() == "Failed")?;
    ensure!(tuned.to_string().contains("kernel.shmmax"), "{tuned}");

    let web = node.manifests().join("web.yaml").display().to_string();
    let verdicts = berth_json(&["check", "--hostname-override", "lab", &web])?;
    same(
        "verdicts",
        verdicts,
        json!([{ "file": web, "pod": "default/web-lab", "errors": [], "unknown": [], "notActedOn": [] }]),
    )?;
    node.end()
}
