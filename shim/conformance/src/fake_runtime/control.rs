//! Commands for a container that was created.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::process::CommandExt;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpgid};
use serde_json::{Value, json};

use super::call::Call;
use super::process::{command_of, is_zombie};
use super::{Outcome, print};

pub(super) fn start(call: &Call) -> Outcome {
    let pid = call.pid()?;
    if kill(pid, None) == Err(Errno::ESRCH) || is_zombie(pid) {
        return Err("cannot start a container that has stopped".into());
    }
    let mut byte = [0];
    let fifo = call.state_dir()?.join("exec.fifo");
    File::open(&fifo).and_then(|mut fifo| fifo.read_exact(&mut byte))?;
    Ok(fs::remove_file(fifo)?)
}

pub(super) fn state(call: &Call) -> Outcome {
    let pid = call.pid()?;
    let dir = call.state_dir()?;
    let gone = kill(pid, None).is_err() || is_zombie(pid);
    let status = match (gone, dir.join("exec.fifo").exists()) {
        (true, _) => "stopped",
        (false, true) => "created",
        (false, false) => "running",
    };
    let bundle = fs::read_to_string(dir.join("bundle"))?;
    print(
        &json!({ "ociVersion": "1.1.0", "id": call.id()?, "status": status, "pid": pid.as_raw(), "bundle": bundle }),
    )
}

pub(super) fn send_signal(call: &Call) -> Outcome {
    let pid = call.pid()?;
    let number = call.operands.get(1).map_or(Ok(15), |number| number.parse::<i32>())?;
    let signal = Signal::try_from(number)?;
    let all = call.flag(&["all", "a"]).is_some();
    let target = if all { Pid::from_raw(-pid.as_raw()) } else { pid };
    if is_zombie(pid) && !all {
        return Err("container not running".into());
    }
    Ok(kill(target, signal).map_err(|_gone| "container not running")?)
}

pub(super) fn signal_group(call: &Call, signal: Signal) -> Outcome {
    Ok(kill(Pid::from_raw(-call.pid()?.as_raw()), signal)?)
}

pub(super) fn delete(call: &Call) -> Outcome {
    let force = call.flag(&["force", "f"]).is_some();
    let pid = match call.pid() {
        Ok(pid) => pid,
        Err(_missing) if force => return Ok(()),
        Err(missing) => return Err(missing),
    };
    let living = kill(pid, None).is_ok() && !is_zombie(pid);
    if living && !force {
        return Err(format!("cannot delete container {} that is not stopped: running", call.id()?).into());
    }
    // Whatever is left in the session goes with the container.
    let _nobody = kill(Pid::from_raw(-pid.as_raw()), Signal::SIGKILL).is_err();
    Ok(fs::remove_dir_all(call.state_dir()?)?)
}

/// Starts a process and leaves it, as `exec --detach`.
pub(super) fn exec(call: &Call) -> Outcome {
    let init = call.pid()?;
    let path = call.flag(&["process", "p"]).ok_or("exec needs --process")?;
    let process: Value = serde_json::from_slice(&fs::read(path)?)?;
    let child = command_of(&process)?.process_group(init.as_raw()).spawn().map_err(|error| {
        format!("exec failed: unable to start container process: exec: {}: {error}", process["args"][0])
    })?;
    if let Some(path) = call.flag(&["pid-file"]) {
        fs::write(path, child.id().to_string())?;
    }
    Ok(())
}

pub(super) fn update(call: &Call) -> Outcome {
    let path = call.flag(&["resources", "r"]).ok_or("update needs --resources")?;
    let mut resources = Vec::new();
    match path {
        "-" => std::io::stdin().read_to_end(&mut resources)?,
        path => File::open(path)?.read_to_end(&mut resources)?,
    };
    Ok(fs::write(call.state_dir()?.join("resources.json"), resources)?)
}

/// The processes of the container: those of its first process's group.
pub(super) fn ps(call: &Call) -> Outcome {
    let init = call.pid()?;
    let entries = fs::read_dir("/proc")?.flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).map(Pid::from_raw);
    let own = pids.filter(|pid| getpgid(Some(*pid)) == Ok(init) && !is_zombie(*pid));
    print(&json!(own.map(Pid::as_raw).collect::<Vec<i32>>()))
}
