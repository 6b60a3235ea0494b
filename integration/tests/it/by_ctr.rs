//! What people do with `ctr`, and tools like nerdctl through the same API: streams, loggers, groups, sandboxes.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;

use anyhow::{Context as _, Result, ensure};
use berth_integration::containerd::{CRI_PLUGINS, Release, ctr, ctr_command, ctr_rows};
use berth_integration::files;
use berth_integration::process::printed;
use berth_integration::wait::{self, Look};
use nix::pty::{Winsize, openpty};
use serde_json::{Value, json};

use crate::kit::{SOON, eventually};
use crate::stock::{RUNTIME, Stock, agreed_on, delete, is_alive, remove, shim_address, shims};
use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("by_ctr::attach_twice_and_detach", attach),
        test("by_ctr::a_terminal_with_its_size", terminal),
        test("by_ctr::a_logging_program_as_nerdctl_uses_it", logger),
        test("by_ctr::pause_resume_processes_and_metrics", looks),
        test("by_ctr::a_group_shares_a_shim_and_nothing_else", || group(Release::Reference)),
        test("by_ctr::a_group_on_2_4", || group(Release::V2_4)),
        test("by_ctr::a_sandbox_without_an_agent", sandbox),
    ]
}

/// A client with its standard input open, whose output is read as it comes.
struct Client {
    child: Child,
    input: Option<File>,
    output: mpsc::Receiver<Vec<u8>>,
    said: String,
}

impl Client {
    fn start(command: &mut Command) -> Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take().map(|pipe| File::from(OwnedFd::from(pipe)));
        let output = child.stdout.take().context("no output")?;
        Ok(Self { child, input, output: follow(File::from(OwnedFd::from(output))), said: String::new() })
    }

    fn type_in(&mut self, text: &str) -> Result<()> {
        Ok(self.input.as_mut().context("its input is closed")?.write_all(text.as_bytes())?)
    }

    /// Waits until it has said something.
    fn says(&mut self, text: &str) -> Result<()> {
        wait::until(&format!("{text:?}"), SOON, || {
            self.said.extend(self.output.try_iter().map(|part| String::from_utf8_lossy(&part).into_owned()));
            let said = &self.said;
            Ok(if said.contains(text) { Look::Ready(()) } else { Look::NotYet(format!("{said:?}")) })
        })
    }

    fn leave(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

/// Parts of output that nobody has looked at yet.
const PARTS_MAX: usize = 64;

/// Reads on a thread, since a program may say nothing for long.
fn follow(mut from: File) -> mpsc::Receiver<Vec<u8>> {
    let (to, output) = mpsc::sync_channel(PARTS_MAX);
    thread::spawn(move || {
        let mut part = [0; 4096];
        // A terminal ends with an error.
        while let Ok(length @ 1..) = from.read(&mut part) {
            if to.send(part[..length].to_vec()).is_err() {
                return;
            }
        }
    });
    output
}

/// A client that is killed takes neither the input nor the container with it.
fn attach() -> Result<()> {
    let stock = Stock::start()?;
    printed(stock.run(&["--detach"], "cat", &["cat"])?.stdin(Stdio::null()))?;
    let pid = agreed_on("cat", "RUNNING")?;
    for word in ["first", "second"] {
        let mut client = Client::start(ctr_command()?.args(["tasks", "attach", "cat"]))?;
        client.type_in(&format!("{word}\n"))?;
        client.says(&format!("{word}\n"))?;
        client.leave()?;
        same("the process", agreed_on("cat", "RUNNING")?, pid)?;
    }
    remove("cat")?;
    stock.end()
}

fn terminal() -> Result<()> {
    let stock = Stock::start()?;
    let size = Winsize { ws_row: 33, ws_col: 77, ws_xpixel: 0, ws_ypixel: 0 };
    let pty = openpty(Some(&size), None)?;
    let mut run = stock.run(&["--rm", "--tty"], "term", &["sh"])?;
    let child = run
        .stdin(Stdio::from(pty.slave.try_clone()?))
        .stdout(Stdio::from(pty.slave.try_clone()?))
        .stderr(Stdio::from(pty.slave))
        .spawn()?;
    // The command keeps the far side open else, and its end is not seen.
    drop(run);
    let master = File::from(pty.master);
    let output = follow(master.try_clone()?);
    let mut client = Client { child, input: Some(master), output, said: String::new() };
    client.says("# ")?;
    client.type_in("echo \"$(tty) of $(stty size)\"\n")?;
    client.says("/dev/pts/0 of 33 77")?;
    client.type_in("exit 5\n")?;
    same("exit code", client.child.wait()?.code(), Some(5))?;
    stock.end()
}

/// nerdctl names itself as the logger, says where its data is, and finds the container by its environment.
fn logger() -> Result<()> {
    let stock = Stock::start()?;
    let dir = stock.world.root().join("logger");
    files::make_dir(&dir)?;
    let program = dir.join("nerdctl");
    let script = "#!/bin/sh\necho \"$CONTAINER_NAMESPACE/$CONTAINER_ID\" > $2/who\nexec 5>&-\n\
                  cat <&3 > $2/stdout & cat <&4 > $2/stderr; wait; echo done > $2/end\n";
    files::write_program(&program, script)?;
    let uri = format!("binary://{}?_NERDCTL_INTERNAL_LOGGING={}", program.display(), dir.display());
    let flags =
        ["--detach", "--log-uri", &uri, "--label", "nerdctl/hostname=one", "--label", "nerdctl/networks=[]"];
    let script = "seq 1 20000; echo oops >&2; exit 3";
    printed(&mut stock.run(&flags, "one", &["sh", "-c", script])?)?;
    agreed_on_end("one")?;
    same("exit code", delete("one", &[])?, 3)?;
    let read = |name: &str| -> Result<String> { Ok(fs::read_to_string(dir.join(name)).unwrap_or_default()) };
    // It ends by itself when it has read all.
    eventually("the logger's end", &"done\n".to_owned(), || read("end"))?;
    same("who", read("who")?.as_str(), "k8s.io/one\n")?;
    same("errors", read("stderr")?.as_str(), "oops\n")?;
    let lines: Vec<String> = (1..=20_000).map(|number: u32| number.to_string()).collect();
    ensure!(read("stdout")?.lines().eq(&lines), "lines are missing or out of order");
    ctr(&["containers", "rm", "one"])?;
    stock.end()
}

fn agreed_on_end(id: &str) -> Result<()> {
    wait::until(&format!("{id} to end"), SOON, || {
        let view = crate::stock::seen(id)?;
        let ended = view.as_ref().is_some_and(|view| view.status == "STOPPED");
        Ok(if ended { Look::Ready(()) } else { Look::NotYet(format!("{view:?}")) })
    })?;
    agreed_on(id, "STOPPED").map(drop)
}

fn looks() -> Result<()> {
    let stock = Stock::start()?;
    stock.run_detached(&[], "one", "sleep 1000 & while :; do :; done")?;
    let pid = agreed_on("one", "RUNNING")?;
    eventually("two processes", &2, || Ok(ctr_rows(&["tasks", "ps", "one"])?.len()))?;
    ctr(&["tasks", "pause", "one"])?;
    same("paused", agreed_on("one", "PAUSED")?, pid)?;
    ctr(&["tasks", "resume", "one"])?;
    same("resumed", agreed_on("one", "RUNNING")?, pid)?;
    let metrics: Value = serde_json::from_str(&ctr(&["tasks", "metrics", "--format", "json", "one"])?)?;
    ensure!(tells_cpu(&metrics), "no use of the processor in {metrics}");
    // A signal to one process leaves the container; one to all of them does not.
    ctr(&["tasks", "kill", "--signal", "SIGKILL", "--all", "one"])?;
    agreed_on_end("one")?;
    same("exit code", delete("one", &[])?, 137)?;
    ctr(&["containers", "rm", "one"])?;
    stock.end()
}

/// Somewhere in the metrics, of either version of cgroups, is a time that is not zero.
fn tells_cpu(metrics: &Value) -> bool {
    let used = ["/cpu/usage/total", "/cpu/usage_usec"].map(|path| metrics.pointer(path));
    used.into_iter().flatten().any(|used| used.as_u64().is_some_and(|used| used > 0))
}

/// As CRI did before sandboxes: the annotation is all that tells.
fn group(release: Release) -> Result<()> {
    let mut stock = Stock::start_release(release, None)?;
    let flags = ["--annotation", "io.containerd.runc.v2.group=pair"];
    for id in ["first", "second"] {
        stock.run_detached(&flags, id, "trap 'exit 7' TERM; sleep 1000 & wait")?;
    }
    let (first, second) = (agreed_on("first", "RUNNING")?, agreed_on("second", "RUNNING")?);
    same("shims", shims()?.len(), 1)?;
    same("sockets", shim_address("first")?, shim_address("second")?)?;
    stock.containerd.kill()?;
    stock.containerd.start_again()?;
    same("first", agreed_on("first", "RUNNING")?, first)?;
    remove("first")?;
    same("second", agreed_on("second", "RUNNING")?, second)?;
    // Others may come into the same shim, also one of the same name.
    stock.run_detached(&flags, "third", "sleep 1000")?;
    let third = agreed_on("third", "RUNNING")?;
    stock.run_detached(&flags, "first", "exit 4")?;
    agreed_on_end("first")?;
    same("exit code", delete("first", &[])?, 4)?;
    ctr(&["containers", "rm", "first"])?;
    same("second", agreed_on("second", "RUNNING")?, second)?;
    same("third", agreed_on("third", "RUNNING")?, third)?;
    same("shims", shims()?.len(), 1)?;
    remove("second")?;
    remove("third")?;
    stock.end()
}

/// A client that knows nothing of ours: no options, no network namespace.
fn sandbox() -> Result<()> {
    let mut stock = Stock::start()?;
    let config = stock.world.root().join("pod.json");
    let spec = json!({ "ociVersion": "1.1.0", "annotations": { "who": "a test" }, "linux": {} });
    files::write(&config, spec.to_string())?;
    let config = config.display().to_string();
    ctr(&["sandboxes", "run", "--runtime", RUNTIME, &config, "pod"])?;
    let rows = ctr_rows(&["sandboxes", "ls"])?;
    ensure!(rows.len() == 1 && rows[0][0] == "pod", "{rows:?}");
    for id in ["one", "two"] {
        stock.run_detached(&["--sandbox", "pod"], id, "sleep 1000")?;
    }
    let pids = [agreed_on_in_pod("one")?, agreed_on_in_pod("two")?];
    same("shims", shims()?.len(), 1)?;
    // CRI takes away what it did not put into the store of sandboxes (decision 0018), and `ctr` puts it there.
    stock.containerd.disable(&CRI_PLUGINS);
    stock.containerd.kill()?;
    stock.containerd.start_again()?;
    same("after a restart", [agreed_on_in_pod("one")?, agreed_on_in_pod("two")?], pids)?;
    remove("one")?;
    same("the other", agreed_on_in_pod("two")?, pids[1])?;
    remove("two")?;
    ctr(&["sandboxes", "rm", "pod"])?;
    stock.end()
}

/// A member has no shim of its own that could be asked.
fn agreed_on_in_pod(id: &str) -> Result<u32> {
    let view = crate::stock::seen(id)?.with_context(|| format!("{id} is lost"))?;
    same("status", view.status.as_str(), "RUNNING")?;
    ensure!(is_alive(view.pid), "{id} is not there");
    Ok(view.pid)
}
