//! containerd is killed inside an operation of the shim, on plain tasks: afterwards containerd, the shim and the process
//! table agree, nothing was done twice, and nothing is lost or left.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use berth_integration::announced::{Announced, Side};
use berth_integration::components;
use berth_integration::containerd::{Release, ctr, ctr_command, ctr_rows};
use berth_integration::wait::{self, Look};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::kit::{SOON, eventually};
use crate::stock::{Stock, agreed, agreed_on, begin, delete, is_alive, remove, seen, shim_address, told};
use crate::suite::{Test, same, test};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test("kills::containerd_inside_the_create_of_a_task", inside_create),
        test("kills::containerd_inside_the_start_of_a_task", inside_start),
        test("kills::containerd_inside_an_exec", inside_exec),
        test("kills::containerd_while_a_task_exits", while_exiting),
        test("kills::containerd_inside_the_delete_of_a_task", inside_delete),
    ]
}

/// Says that it runs, and that it was asked to end.
const POLITE: &str = "trap 'echo bye; exit 7' TERM; echo up; sleep 1000 & wait";
const SAID: &str = "up\nbye\n";

/// When a held call goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GoesOn {
    /// The next containerd finds it under way.
    UnderTheNext,
    /// The next containerd finds it done, or nearly so.
    BeforeTheNext,
}

/// Every way to be inside a call.
const WAYS: [(&str, Side, GoesOn); 4] = [
    ("early-under", Side::Before, GoesOn::UnderTheNext),
    ("early-before", Side::Before, GoesOn::BeforeTheNext),
    ("late-under", Side::After, GoesOn::UnderTheNext),
    ("late-before", Side::After, GoesOn::BeforeTheNext),
];

/// A containerd whose shims' runtime can be held.
struct Scene {
    stock: Stock,
    runtime: Announced,
}

impl Scene {
    fn set() -> Result<Self> {
        let runtime = Announced::install(Path::new("/run/announced"), "runc", &components::binary("runc")?)?;
        let stock = Stock::start_release(Release::Reference, Some(runtime.dir()))?;
        Ok(Self { stock, runtime })
    }

    /// Kills containerd while what `client` asked for is in the runtime, and starts it again.
    fn cut(&mut self, client: &mut Command, command: &str, side: Side, goes_on: GoesOn) -> Result<()> {
        let held = self.runtime.hold(side, command)?;
        let mut client = begin(client)?;
        held.reached()?;
        self.stock.containerd.kill()?;
        // Nobody is there any more who could answer it.
        client.kill()?;
        client.wait()?;
        if goes_on == GoesOn::BeforeTheNext {
            held.release()?;
            self.stock.containerd.start_again()
        } else {
            self.stock.containerd.start_again()?;
            held.release()
        }
    }

    /// How often the runtime was called for a container.
    fn same_calls(&self, id: &str, command: &str, wanted: usize) -> Result<()> {
        same(&format!("calls of {command} for {id}"), self.runtime.calls(command, id)?, wanted)
    }

    /// A running task ends as asked; containerd knows its code and the log has all it said.
    fn ends_well(&self, id: &str) -> Result<()> {
        let pid = agreed_on(id, "RUNNING")?;
        eventually("its first words", &true, || {
            Ok(fs::read_to_string(self.stock.log(id)).unwrap_or_default().contains("up"))
        })?;
        ctr(&["tasks", "kill", "--signal", "SIGTERM", id])?;
        eventually("its end", &false, || Ok(is_alive(pid)))?;
        agreed_on(id, "STOPPED")?;
        same("exit code", delete(id, &[])?, 7)?;
        ctr(&["containers", "rm", id])?;
        same("output", fs::read_to_string(self.stock.log(id))?.as_str(), SAID)?;
        self.same_calls(id, "create", 1)?;
        self.same_calls(id, "start", 1)
    }

    /// Nobody knows a task any more; its container can have another.
    fn is_gone(&self, id: &str) -> Result<()> {
        same(&format!("task {id}"), agreed(id)?, None)?;
        ctr(&["containers", "rm", id])?;
        // containerd forgets the connection to a shim some time after the task.
        wait::until("the same id to be free", SOON, || {
            let run = self.stock.detached(&[], id, POLITE)?.output()?;
            if run.status.success() {
                return Ok(Look::Ready(()));
            }
            ctr(&["containers", "rm", id])?;
            Ok(Look::NotYet(String::from_utf8_lossy(&run.stderr).into_owned()))
        })?;
        agreed_on(id, "RUNNING")?;
        remove(id)
    }
}

/// A creation that nobody waits for any more is finished or undone, as a whole.
fn inside_create() -> Result<()> {
    let mut scene = Scene::set()?;
    for (id, side, goes_on) in WAYS {
        let mut client = scene.stock.detached(&[], id, POLITE)?;
        scene.cut(&mut client, "create", side, goes_on).with_context(|| id.to_owned())?;
        match agreed(id).with_context(|| id.to_owned())? {
            None => scene.is_gone(id)?,
            Some(view) => {
                same(&format!("status of {id}"), view.status.as_str(), "CREATED")?;
                // `ctr` has no word for it.
                let address = shim_address(id)?.context("no shim")?;
                ctr(&["shim", "--shim-address", &address, "start", id])?;
                scene.ends_well(id)?;
            }
        }
    }
    scene.stock.end()
}

fn inside_start() -> Result<()> {
    let mut scene = Scene::set()?;
    for (id, side, goes_on) in WAYS {
        let mut client = scene.stock.detached(&[], id, POLITE)?;
        scene.cut(&mut client, "start", side, goes_on).with_context(|| id.to_owned())?;
        eventually("the task to run", &true, || Ok(told(id)?.is_some_and(|view| view.status == "RUNNING")))?;
        scene.ends_well(id).with_context(|| id.to_owned())?;
    }
    scene.stock.end()
}

/// Execs are in one container, which does not notice.
fn inside_exec() -> Result<()> {
    let mut scene = Scene::set()?;
    let id = "one";
    scene.stock.run_detached(&[], id, POLITE)?;
    let pid = agreed_on(id, "RUNNING")?;
    for (number, (exec, side, goes_on)) in WAYS.into_iter().enumerate() {
        let log = scene.stock.log(exec);
        let uri = format!("file://{}", log.display());
        let mut client = ctr_command()?;
        client.args(["tasks", "exec", "--exec-id", exec, "--detach", "--log-uri", &uri, id]);
        client.args(["sh", "-c", "echo ran; exec sleep 1000"]);
        scene.cut(&mut client, "exec", side, goes_on).with_context(|| exec.to_owned())?;
        eventually("the exec to be listed", &true, || Ok(exec_pid(id, exec)?.is_some()))?;
        let exec_pid = exec_pid(id, exec)?.context("the exec is lost")?;
        ensure!(is_alive(exec_pid), "containerd lists {exec_pid}, which is not there");
        same("init", agreed_on(id, "RUNNING")?, pid)?;
        eventually("its words", &"ran\n".to_owned(), || Ok(fs::read_to_string(&log)?))?;
        ctr(&["tasks", "kill", "--exec-id", exec, "--signal", "SIGKILL", id])?;
        eventually("the exec to end", &false, || Ok(is_alive(exec_pid)))?;
        same("code of the exec", delete(id, &["--exec-id", exec])?, 137)?;
        scene.same_calls(id, "exec", number + 1)?;
    }
    scene.ends_well(id)?;
    scene.stock.end()
}

/// The process of an exec, as containerd lists it.
fn exec_pid(id: &str, exec: &str) -> Result<Option<u32>> {
    let rows = ctr_rows(&["tasks", "ps", id])?;
    let row = rows.into_iter().find(|row| row.iter().any(|word| word.contains(exec)));
    row.map(|row| Ok(row[0].parse()?)).transpose()
}

/// The exit is on its way to a containerd that hangs and dies, or to one that is not there.
fn while_exiting() -> Result<()> {
    let mut scene = Scene::set()?;
    for id in ["hangs", "is-down"] {
        scene.stock.run_detached(&[], id, POLITE)?;
        let pid = agreed_on(id, "RUNNING")?;
        eventually("its first words", &true, || Ok(!fs::read(scene.stock.log(id))?.is_empty()))?;
        if id == "hangs" {
            scene.stock.containerd.freeze()?;
        } else {
            scene.stock.containerd.kill()?;
        }
        kill(Pid::from_raw(i32::try_from(pid)?), Signal::SIGTERM)?;
        eventually(
            "the shim to know",
            &Some("STOPPED".to_owned()),
            || Ok(told(id)?.map(|view| view.status)),
        )?;
        scene.stock.containerd.kill()?;
        scene.stock.containerd.start_again()?;
        agreed_on(id, "STOPPED")?;
        same("exit code", delete(id, &[])?, 7)?;
        ctr(&["containers", "rm", id])?;
        same("output", fs::read_to_string(scene.stock.log(id))?.as_str(), SAID)?;
    }
    scene.stock.end()
}

/// A deletion that nobody waits for any more is finished, and the shim ends.
fn inside_delete() -> Result<()> {
    let mut scene = Scene::set()?;
    for (id, side, goes_on) in WAYS {
        scene.stock.run_detached(&[], id, "exit 7")?;
        eventually("its end", &Some("STOPPED".to_owned()), || Ok(seen(id)?.map(|view| view.status)))?;
        let mut client = ctr_command()?;
        client.args(["tasks", "rm", id]);
        scene.cut(&mut client, "delete", side, goes_on).with_context(|| id.to_owned())?;
        match delete(id, &[]) {
            Ok(code) => same("exit code", code, 7).with_context(|| id.to_owned())?,
            // It was done in time.
            Err(refused) => ensure!(agreed(id)?.is_none(), "{id}: {refused:#}"),
        }
        scene.is_gone(id).with_context(|| id.to_owned())?;
    }
    scene.stock.end()
}
