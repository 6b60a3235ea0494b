//! `create`, and the process that it leaves waiting for `start`.

use std::env;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::call::Call;
use super::process::command_of;
use super::{CREATE, INIT, Outcome};

/// How `create` misbehaves.
pub(super) enum Wish {
    /// Prints this and fails.
    Fail(String),
    /// Never ends.
    Hang,
    /// Waits until this file exists.
    WaitFor(PathBuf),
    /// Works, but the init process exits before it is started.
    DeadInit,
    /// Is killed.
    Die,
    None,
}

pub(super) fn create(call: &Call) -> Outcome {
    let bundle = call.flag(&["bundle", "b"]).map_or_else(env::current_dir, |bundle| Ok(bundle.into()))?;
    let spec: Value = serde_json::from_slice(&fs::read(bundle.join("config.json"))?)?;
    let wish = wish(spec["annotations"][CREATE].as_str().unwrap_or_default());
    match &wish {
        Wish::Fail(message) => return Err(message.clone().into()),
        Wish::Hang => loop {
            std::thread::park();
        },
        Wish::WaitFor(path) => {
            while !path.exists() {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        }
        Wish::Die => {
            kill(Pid::this(), Signal::SIGKILL)?;
        }
        Wish::DeadInit | Wish::None => {}
    }
    let state = call.state_dir()?;
    if state.exists() {
        return Err("container with given ID already exists".into());
    }
    fs::create_dir_all(&state)?;
    nix::unistd::mkfifo(&state.join("exec.fifo"), nix::sys::stat::Mode::S_IRWXU)?;
    let program = env::args_os().next().ok_or("a name")?;
    let mut init = Command::new(program);
    init.arg("init").arg(&state).arg(bundle.join("config.json"));
    if matches!(wish, Wish::DeadInit) {
        init.arg("dead");
    }
    let child = init.process_group(0).spawn()?;
    fs::write(state.join("pid"), child.id().to_string())?;
    fs::write(state.join("bundle"), bundle.display().to_string())?;
    if let Some(path) = call.flag(&["pid-file"]) {
        fs::write(path, child.id().to_string())?;
    }
    Ok(())
}

pub(super) fn wish(text: &str) -> Wish {
    match text.split_once(':').unwrap_or((text, "")) {
        ("fail", message) => Wish::Fail(message.to_owned()),
        ("hang", _) => Wish::Hang,
        ("wait-for", path) => Wish::WaitFor(path.into()),
        ("dead-init", _) => Wish::DeadInit,
        ("die", _) => Wish::Die,
        _ => Wish::None,
    }
}

/// The container's init: waits for `start`, then becomes the process of the spec.
pub(super) fn init(call: &Call) -> Outcome {
    let [state, config, rest @ ..] = call.operands.as_slice() else {
        return Err("init takes two operands".into());
    };
    if !rest.is_empty() {
        return Ok(());
    }
    let spec: Value = serde_json::from_slice(&fs::read(config)?)?;
    let fifo = Path::new(state).join("exec.fifo");
    // Blocks until `start` opens the other end.
    OpenOptions::new().write(true).open(fifo).and_then(|mut fifo| fifo.write_all(b"0"))?;
    if spec["annotations"][INIT] == "exit" {
        return Ok(());
    }
    Err(command_of(&spec["process"])?.exec().into())
}
