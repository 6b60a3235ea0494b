//! `checkpoint` and `restore`, with a criu that saves nothing.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::call::Call;
use super::create::{Wish, wish};
use super::process::command_of;
use super::{CRIU, Outcome, RESTORED};

/// Writes down how it was called, in place of what the container holds.
pub(super) fn checkpoint(call: &Call) -> Outcome {
    let init = call.pid()?;
    let state = call.state_dir()?;
    let image = PathBuf::from(call.flag(&["image-path"]).ok_or("checkpoint needs --image-path")?);
    fs::create_dir_all(&image)?;
    criu(call, Path::new(&fs::read_to_string(state.join("bundle"))?), "dump.log")?;
    fs::write(image.join("inventory.img"), call.flag_names())?;
    if call.flag(&["leave-running"]).is_none() {
        kill(Pid::from_raw(-init.as_raw()), Signal::SIGKILL)?;
        fs::remove_dir_all(state)?;
    }
    Ok(())
}

/// Runs the program of the bundle from its beginning, as it is not known how far it was.
pub(super) fn restore(call: &Call) -> Outcome {
    let bundle = PathBuf::from(call.flag(&["bundle", "b"]).ok_or("restore needs --bundle")?);
    let image = PathBuf::from(call.flag(&["image-path"]).ok_or("restore needs --image-path")?);
    fs::read(image.join("inventory.img"))?;
    let state = call.state_dir()?;
    fs::create_dir_all(&state)?;
    criu(call, &bundle, "restore.log")?;
    fs::write(image.join(RESTORED), call.flag_names())?;
    let spec: Value = serde_json::from_slice(&fs::read(bundle.join("config.json"))?)?;
    let child = command_of(&spec["process"])?.process_group(0).spawn()?;
    fs::write(state.join("pid"), child.id().to_string())?;
    fs::write(state.join("bundle"), bundle.display().to_string())?;
    Ok(fs::write(call.flag(&["pid-file"]).ok_or("restore needs --pid-file")?, child.id().to_string())?)
}

/// Misbehaves as criu does when the bundle asks for it: it says why in its own log.
fn criu(call: &Call, bundle: &Path, log: &str) -> Outcome {
    let work = PathBuf::from(call.flag(&["work-path"]).ok_or("criu needs --work-path")?);
    fs::create_dir_all(&work)?;
    let spec: Value = serde_json::from_slice(&fs::read(bundle.join("config.json"))?)?;
    match wish(spec["annotations"][CRIU].as_str().unwrap_or_default()) {
        Wish::Fail(reason) => {
            fs::write(work.join(log), format!("(00.000001) Error (criu/fake.c:1): {reason}\n"))?;
            Err("criu failed: type NOTIFY errno 0".into())
        }
        Wish::WaitFor(path) => {
            while !path.exists() {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            Ok(())
        }
        Wish::Hang => loop {
            std::thread::park();
        },
        Wish::DeadInit | Wish::Die | Wish::None => Ok(()),
    }
}
