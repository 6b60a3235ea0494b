//! `kubectl attach`: to the input and output of a container, and to a terminal.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::Stdio;
use std::thread;

use anyhow::{Context, Result, ensure};
use berth_integration::wait::{self, Look};
use nix::pty::openpty;
use serde_json::{Value, json};

use super::kubectl::{Protocol, ended, with_input};
use super::{KUBECTL_LIMIT, Served, read_until};
use crate::api_pods::path;
use crate::cli::in_terminal;
use crate::kit::shell;
use crate::suite::same;

/// How the API server brings a protocol to the node.
const HOW: [&str; 2] = ["passed on", "translated"];
/// It says at once that it listens, and ends with its input.
const LISTENS: &str =
    "echo listens; while read line; do echo heard $line; echo badly $line >&2; done; echo over";
/// The same for whoever looks on, and comes and goes.
const SPEAKS: &str = "while read line; do echo heard $line; done";

/// The pod that is attached to once.
pub(super) fn name(protocol: Protocol, how: &str) -> String {
    format!("listens-{}-{}", protocol.name(), how.replace(' ', "-"))
}

/// The pods: each is attached to once, since its input ends with the first who attaches.
pub(super) fn create(served: &Served) -> Result<()> {
    for how in HOW {
        for protocol in Protocol::BOTH {
            let once = shell("main", LISTENS, json!({ "stdin": true, "stdinOnce": true }));
            let tty = shell("tty", SPEAKS, json!({ "stdin": true, "tty": true }));
            let speaks = shell("speaks", SPEAKS, json!({ "stdin": true }));
            let spec = json!({ "restartPolicy": "Never", "containers": [once, tty, speaks] });
            served.create(&name(protocol, how), spec)?;
        }
    }
    Ok(())
}

pub(super) fn to(served: &Served, protocol: Protocol, pod: &str) -> Result<()> {
    served.ready(pod)?;
    looks_on(served, protocol, pod)?;
    let pty = openpty(None, None)?;
    let mut types = in_terminal(&protocol.kubectl(served, &["attach", "-it", pod, "-c", "tty"])?, pty.slave)?;
    let mut master = File::from(pty.master);
    master.write_all(b"everybody\n")?;
    read_until(&mut master, "heard everybody\r\n")?;

    let mut command = protocol.kubectl(served, &["attach", "-i", pod, "-c", "main"])?;
    let done = with_input(&mut command, b"one\ntwo\n")?;
    let [out, err] = [&done.stdout, &done.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    ensure!(done.status.success(), "{}: {err}", done.status);
    ensure!(out.ends_with("heard one\nheard two\nover\n"), "{out:?}");
    ensure!(err.contains("badly one\nbadly two\n"), "{err:?}");
    let over = |pod: &Value| code_of(pod, "main") == Some(0);
    served.cluster.wait_for(&path(pod), "over with its input", over)?;

    // Control-D ends the other one's input, and with it the container and what is attached to it.
    master.write_all(b"\x04")?;
    // It hangs up, with an error, when the last process of it ends.
    drop(master.read_to_end(&mut Vec::new()));
    same("kubectl attach -it", ended(&mut types, "kubectl attach")?, Some(0))?;
    let both_over = |pod: &Value| code_of(pod, "tty") == Some(0);
    served.cluster.wait_for(&path(pod), "over", both_over).map(drop)
}

/// Whoever only looks on sees what another's input comes to. What is typed before somebody is attached, nobody sees.
fn looks_on(served: &Served, protocol: Protocol, pod: &str) -> Result<()> {
    let attach = |args: &[&str]| {
        let mut command = protocol.kubectl(served, &[&["attach", pod, "-c", "speaks"], args].concat())?;
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("start kubectl")
    };
    let (mut looks, mut types) = (attach(&[])?, attach(&["-i"])?);
    let mut seen = looks.stdout.take().context("stdout")?;
    let mut typed = types.stdin.take().context("stdin")?;
    let looked = thread::spawn(move || read_until(&mut seen, "heard everybody"));
    let waited = wait::until("who looks on to see what is typed", KUBECTL_LIMIT, || {
        typed.write_all(b"everybody\n")?;
        Ok(if looked.is_finished() { Look::Ready(()) } else { Look::NotYet("nothing".to_owned()) })
    });
    for kubectl in [&mut looks, &mut types] {
        kubectl.kill()?;
        kubectl.wait()?;
    }
    waited?;
    looked.join().ok().context("the reader panicked")?.map(drop)
}

/// The code with which a container has ended.
pub(super) fn code_of(pod: &Value, container: &str) -> Option<i64> {
    let statuses = ["containerStatuses", "ephemeralContainerStatuses"];
    let all = statuses.iter().filter_map(|field| pod["status"][*field].as_array()).flatten();
    let mut found = all.filter(|one| one["name"] == container);
    found.next()?["state"]["terminated"]["exitCode"].as_i64()
}
