//! An OCI runtime that does what a test says.
//!
//! It has the command line of runc and no containers: a container's init is a process of the host in a session of its
//! own. Annotations of the bundle's spec make it misbehave, see [`CREATE`] and [`INIT`].

mod call;
mod control;
mod create;
mod criu;
mod process;

use std::env;
use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use call::Call;
use control::{delete, exec, ps, send_signal, signal_group, start, state, update};
use create::{create, init};
use criu::{checkpoint, restore};

/// The name under which this program is a runtime.
pub const NAME: &str = "fake-runtime";

/// The annotation that says how `create` misbehaves.
///
/// `fail:<message>`, `hang`, `wait-for:<path>`, `dead-init` (the first process ends before `start`), `die` (the runtime is
/// killed).
pub const CREATE: &str = "berth.test/create";

/// The annotation that says how criu misbehaves, in the words of [`CREATE`]: what it says of a failure is in its log.
pub const CRIU: &str = "berth.test/criu";

/// The file in a checkpoint that says how `restore` was called.
pub const RESTORED: &str = "restored-with";

/// The annotation that, with the value `exit`, lets the first process end at `start` instead of running anything.
pub const INIT: &str = "berth.test/init";

type Outcome = Result<(), Box<dyn Error>>;

/// Whether this process was started under the name of the runtime.
pub fn is_called() -> bool {
    env::args_os().next().is_some_and(|name| Path::new(&name).file_name().is_some_and(|name| name == NAME))
}

/// Does what the command line says.
pub fn main() -> ExitCode {
    let call = Call::parse(env::args().skip(1));
    let outcome = match call.verb.as_str() {
        "create" => create(&call),
        "init" => init(&call),
        "start" => start(&call),
        "state" => state(&call),
        "kill" => send_signal(&call),
        "delete" => delete(&call),
        "exec" => exec(&call),
        "pause" => signal_group(&call, Signal::SIGSTOP),
        "resume" => signal_group(&call, Signal::SIGCONT),
        "update" => update(&call),
        "ps" => ps(&call),
        "checkpoint" => checkpoint(&call),
        "restore" => restore(&call),
        "features" => features(),
        other => Err(format!("command {other:?} is not faked").into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            call.report(&message.to_string());
            ExitCode::FAILURE
        }
    }
}

fn features() -> Outcome {
    print(&json!({ "ociVersionMin": "1.0.0", "ociVersionMax": "1.1.0" }))
}

fn print(value: &Value) -> Outcome {
    Ok(writeln!(std::io::stdout(), "{value}")?)
}
